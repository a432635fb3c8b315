#pragma once
// Argmax over the classes of resized maps, a thread a pixel; neighbouring threads read the same or neighbouring sources.
#include "device.cuh"
#include "upsample_argmax.h"

namespace mesa {

constexpr int kArgmaxThreads = 128;

// One axis's sources of a pixel: the first kHeld in registers, what is beyond read again for every class.
constexpr int kHeld = 4;
struct Held {
  float weight[kHeld];
  int32_t offset[kHeld];  // in elements; a class's map is small enough
};
__device__ __forceinline__ Held hold(const TapList& list, int64_t position, int64_t stride) {
  Held h;
  MESA_UNROLL
  for (int t = 0; t < kHeld; ++t) {
    const bool there = t < list.count;
    h.weight[t] = there ? list.weight[position * list.count + t] : 0.0f;
    h.offset[t] = there ? (int32_t)(list.index[position * list.count + t] * stride) : 0;
  }
  return h;
}

struct PixelTaps {
  Held rows, columns;
  int32_t y, x;
};

template <class T>
__device__ __forceinline__ float column_value(const ArgmaxMap& m, const T* column, const PixelTaps& taps) {
  float sum = 0.0f;
  MESA_UNROLL
  for (int s = 0; s < kHeld; ++s)
    if (taps.rows.weight[s] != 0.0f) sum = fmaf(to_float(column[taps.rows.offset[s]]), taps.rows.weight[s], sum);
  for (int s = kHeld; s < m.rows.count; ++s) {
    const float weight = m.rows.weight[(int64_t)taps.y * m.rows.count + s];
    if (weight != 0.0f)
      sum = fmaf(to_float(column[m.rows.index[(int64_t)taps.y * m.rows.count + s] * m.row]), weight, sum);
  }
  return sum;
}
template <class T>
__device__ __forceinline__ float map_value(const ArgmaxMap& m, int64_t c, const PixelTaps& taps) {
  const T* map = static_cast<const T*>(m.logits) + c * m.channel;
  float value = 0.0f;
  MESA_UNROLL
  for (int t = 0; t < kHeld; ++t)
    if (taps.columns.weight[t] != 0.0f)
      value = fmaf(column_value(m, map + taps.columns.offset[t], taps), taps.columns.weight[t], value);
  for (int t = kHeld; t < m.columns.count; ++t) {
    const float weight = m.columns.weight[(int64_t)taps.x * m.columns.count + t];
    if (weight != 0.0f)
      value = fmaf(column_value(m, map + m.columns.index[(int64_t)taps.x * m.columns.count + t] * m.column, taps), weight, value);
  }
  return value;
}
__device__ __forceinline__ PixelTaps taps_of(const ArgmaxMap& m, int64_t y, int64_t x) {
  return {hold(m.rows, y, m.row), hold(m.columns, x, m.column), (int32_t)y, (int32_t)x};
}

// The same with every source read again: where there are several maps, registers are for other things.
template <class T>
__device__ __forceinline__ float map_value_lean(const ArgmaxMap& m, int64_t c, int64_t y, int64_t x) {
  const T* map = static_cast<const T*>(m.logits) + c * m.channel;
  float value = 0.0f;
#pragma unroll 1
  for (int t = 0; t < m.columns.count; ++t) {
    const float weight = m.columns.weight[x * m.columns.count + t];
    if (weight == 0.0f) continue;
    const T* column = map + m.columns.index[x * m.columns.count + t] * m.column;
    float sum = 0.0f;
#pragma unroll 1
    for (int s = 0; s < m.rows.count; ++s) {
      const float part = m.rows.weight[y * m.rows.count + s];
      if (part != 0.0f) sum = fmaf(to_float(column[m.rows.index[y * m.rows.count + s] * m.row]), part, sum);
    }
    value = fmaf(sum, weight, value);
  }
  return value;
}

// One map: its largest class.
template <class T>
__global__ void __launch_bounds__(kArgmaxThreads, 4)
    upsample_argmax_kernel(const ArgmaxMap m, int classes, int64_t rows, int64_t columns, int64_t* __restrict__ labels) {
  for (int64_t i = thread_index(); i < rows * columns; i += thread_count()) {
    const Quotient place = divide(i, columns);
    const PixelTaps taps = taps_of(m, place.quotient, place.remainder);
    float best = -INFINITY;
    int64_t found = 0;
#pragma unroll 1
    for (int c = 0; c < classes; ++c) {
      const float value = map_value<T>(m, c, taps);
      if (value > best) best = value, found = c;
    }
    labels[i] = found;
  }
}

// The largest class of the sum of several.
template <class T>
__global__ void __launch_bounds__(kArgmaxThreads, 4)
    upsample_argmax_sum_kernel(const ArgmaxMaps p, int64_t* __restrict__ labels) {
  for (int64_t i = thread_index(); i < p.rows * p.columns; i += thread_count()) {
    const Quotient place = divide(i, p.columns);
    const int64_t y = place.quotient, x = place.remainder;
    float log_sum[kMaxMaps];
    if (p.softmax)
      for (int k = 0; k < p.maps; ++k) {
        float peak = -INFINITY, total = 0.0f;
#pragma unroll 1
        for (int c = 0; c < p.classes; ++c) peak = fmaxf(peak, map_value_lean<T>(p.map[k], c, y, x));
#pragma unroll 1
        for (int c = 0; c < p.classes; ++c) total += expf(map_value_lean<T>(p.map[k], c, y, x) - peak);
        log_sum[k] = peak + logf(total);
      }
    float best = -INFINITY;
    int64_t found = 0;
#pragma unroll 1
    for (int c = 0; c < p.classes; ++c) {
      float value = 0.0f;
      for (int k = 0; k < p.maps; ++k) {
        const float part = map_value_lean<T>(p.map[k], c, y, x);
        value += p.softmax ? expf(part - log_sum[k]) : part;
      }
      if (value > best) best = value, found = c;
    }
    labels[i] = found;
  }
}

}  // namespace mesa
