#pragma once
// Cross-entropy of upsampled logits. First a thread a pixel: loss, counts, and the log of its sum of exponentials. Then the
// gradient, gathered for each low-resolution pixel in a fixed order, without atomics.
#include "device.cuh"
#include "upsample_cross_entropy.h"

namespace mesa {

constexpr int kPixelThreads = 256;
constexpr int kGradWarps = 8;    // classes of a block
constexpr int kGradRows = 8;     // low-resolution rows of a block; it computes the pixels of one row more
constexpr int kGradChunk = 512;  // pixels of an output row that a warp holds at a time

__device__ __forceinline__ int64_t read_label(const void* labels, LabelType type, int64_t i) {
  switch (type) {
    case LabelType::i64: return static_cast<const int64_t*>(labels)[i];
    case LabelType::i32: return static_cast<const int32_t*>(labels)[i];
    case LabelType::i16: return static_cast<const int16_t*>(labels)[i];
    default: return static_cast<const uint8_t*>(labels)[i];
  }
}

// The four sources of a pixel within one class's map, and their weights.
struct Sources {
  int64_t top, bottom, left, right;
  Tap row, column;
};
__device__ __forceinline__ Sources sources_of(const Axis& rows, const Axis& columns, int64_t y, int64_t x) {
  Sources s;
  s.row = source_tap(rows, y);
  s.column = source_tap(columns, x);
  s.left = s.column.first;
  s.right = s.left + 1 < columns.in ? s.left + 1 : s.left;
  s.top = s.row.first * columns.in;
  s.bottom = s.row.first + 1 < rows.in ? s.top + columns.in : s.top;
  return s;
}
template <class T>
__device__ __forceinline__ float value_at(const T* map, const Sources& s) {
  const float left = fmaf(to_float(map[s.bottom + s.left]), s.row.upper, to_float(map[s.top + s.left]) * s.row.lower);
  const float right = fmaf(to_float(map[s.bottom + s.right]), s.row.upper, to_float(map[s.top + s.right]) * s.row.lower);
  return fmaf(right, s.column.upper, left * s.column.lower);
}

// The block's sums, in a fixed order; thread 0 has them. The fifth is a smallest value.
__device__ __forceinline__ void reduce_block(double (&v)[5]) {
  MESA_SHARED(double, shared, 5 * (kPixelThreads / 32));
  const int warp = threadIdx.x >> 5;
  for (int k = 0; k < 5; ++k)
    for (int o = 16; o > 0; o >>= 1) {
      const double other = __shfl_xor_sync(kFullWarp, v[k], o);
      v[k] = k < 4 ? v[k] + other : (other < v[k] ? other : v[k]);
    }
  if (lane_id() == 0)
    for (int k = 0; k < 5; ++k) shared[k * (kPixelThreads / 32) + warp] = v[k];
  __syncthreads();
  if (threadIdx.x == 0)
    for (int k = 0; k < 5; ++k)
      for (int w = 1; w < kPixelThreads / 32; ++w) {
        const double other = shared[k * (kPixelThreads / 32) + w];
        v[k] = k < 4 ? v[k] + other : (other < v[k] ? other : v[k]);
      }
}

constexpr double kNoPlace = 1.0e300;

template <class T>
__global__ void __launch_bounds__(kPixelThreads) cross_entropy_pixels_kernel(CrossEntropy p, int64_t blocks) {
  const int64_t image = blockIdx.y, pixels = p.rows.out * p.columns.out;
  const int64_t plane = p.rows.in * p.columns.in;
  const T* maps = static_cast<const T*>(p.logits) + image * p.classes * plane;
  double sums[5] = {0, 0, 0, 0, kNoPlace};
  for (int64_t i = blockIdx.x * (int64_t)kPixelThreads + threadIdx.x; i < pixels; i += blocks * kPixelThreads) {
    const int64_t at = image * pixels + i, label = read_label(p.labels, p.label_type, at);
    const bool known = label >= 0 && label < p.classes, kept = known && label != p.ignore_index;
    if (!known && label != p.ignore_index && (double)i < sums[4]) sums[4] = (double)i;
    float loss = 0.0f, log_sum = 0.0f, factor = 0.0f;
    if (kept) {
      const Quotient place = divide(i, p.columns.out);
      const Sources s = sources_of(p.rows, p.columns, place.quotient, place.remainder);
      float peak = -INFINITY, own = 0.0f;
      int best = 0;
      for (int c = 0; c < p.classes; ++c) {
        const float value = value_at(maps + c * plane, s);
        if (value > peak) peak = value, best = c;
        if (c == (int)label) own = value;
      }
      float total = 0.0f;
      for (int c = 0; c < p.classes; ++c) total += expf(value_at(maps + c * plane, s) - peak);
      const float each = p.class_weight ? p.class_weight[label] : 1.0f;
      factor = p.weight ? each * p.weight[at] : each;
      const float rest = logf(total);
      loss = factor * (rest + (peak - own));
      log_sum = rest + peak;
      sums[0] += loss;
      sums[1] += 1;
      sums[2] += best == (int)label && own == peak;
      sums[3] += each;
    }
    if (p.loss) p.loss[at] = loss;
    if (p.grad) {
      p.log_sum[at] = log_sum;
      p.factor[at] = factor;
    }
  }
  reduce_block(sums);
  if (threadIdx.x == 0)
    for (int k = 0; k < 5; ++k) p.partial[(image * blocks + blockIdx.x) * 5 + k] = sums[k];
}

__global__ void __launch_bounds__(kPixelThreads) cross_entropy_sums_kernel(CrossEntropy p, int64_t blocks) {
  const int64_t image = blockIdx.x;
  double sums[5] = {0, 0, 0, 0, kNoPlace};
  for (int64_t b = threadIdx.x; b < blocks; b += kPixelThreads) {
    const double* part = p.partial + (image * blocks + b) * 5;
    for (int k = 0; k < 4; ++k) sums[k] += part[k];
    if (part[4] < sums[4]) sums[4] = part[4];
  }
  reduce_block(sums);
  if (threadIdx.x == 0) {
    for (int k = 0; k < 4; ++k) p.sums[image * 5 + k] = sums[k];
    p.sums[image * 5 + 4] = sums[4] < kNoPlace ? sums[4] : -1.0;
  }
}

// First output position whose first source is at least `source`.
__device__ __forceinline__ int64_t first_of(const Axis& axis, int64_t source) {
  int64_t low = 0, high = axis.out;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (source_tap(axis, middle).first < source)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// A warp: one class, 32 low-resolution columns (one a lane), kGradRows low-resolution rows. Over the output rows that touch
// them, in order: the lanes compute the gradient of the pixels of one output row, each then gathers those of its column.
template <class T>
__global__ void __launch_bounds__(kGradWarps * 32) cross_entropy_gradient_kernel(CrossEntropy p, int class_groups) {
  MESA_SHARED(float, all_low, kGradWarps * 34);
  MESA_SHARED(float, all_pixels, kGradWarps * kGradChunk);
  const int warp = threadIdx.x >> 5, lane = lane_id();
  const int64_t image = blockIdx.z / class_groups;
  const int c = (int)(blockIdx.z % class_groups) * kGradWarps + warp;
  if (c >= p.classes) return;  // whole warps leave, and only warps wait for each other below
  const int64_t height = p.rows.in, width = p.columns.in;
  const int64_t left = (int64_t)blockIdx.x * 32, x = left + lane;
  const int64_t top = (int64_t)blockIdx.y * kGradRows, bottom = top + kGradRows < height ? top + kGradRows : height;
  const T* map = static_cast<const T*>(p.logits) + (image * p.classes + c) * height * width;
  float* grad = p.grad + (image * p.classes + c) * height * width;
  const int low = warp * 34, pixels = warp * kGradChunk;

  // Output columns from `start` to `stop` have a source in this tile; lane x gathers those from mine[0] to mine[2], of which
  // the ones before mine[1] have it as their second source.
  const int64_t start = first_of(p.columns, left - 1), stop = first_of(p.columns, left + 32);
  int64_t mine[3] = {0, 0, 0};
  if (x < width)
    for (int k = 0; k < 3; ++k) mine[k] = first_of(p.columns, x - 1 + k);

  int64_t row = top;            // of `here`; `below` is the next one's
  float here = 0.0f, below = 0.0f;
  const int64_t last = first_of(p.rows, bottom);
  for (int64_t y = first_of(p.rows, top - 1); y < last; ++y) {
    const Tap tap = source_tap(p.rows, y);
    for (; row < tap.first; ++row) {
      if (x < width) grad[row * width + x] = here;
      here = below;
      below = 0.0f;
    }
    const int64_t second = tap.first + 1 < height ? tap.first + 1 : tap.first;
    for (int i = lane; i < 34; i += 32) {
      int64_t from = left - 1 + i;
      from = from < 0 ? 0 : from < width ? from : width - 1;
      all_low[low + i] = fmaf(to_float(map[second * width + from]), tap.upper,
                              to_float(map[tap.first * width + from]) * tap.lower);
    }
    __syncwarp();
    float gathered = 0.0f;
    const int64_t base = (image * p.rows.out + y) * p.columns.out;
    for (int64_t chunk = start; chunk < stop; chunk += kGradChunk) {
      const int64_t end = chunk + kGradChunk < stop ? chunk + kGradChunk : stop;
      for (int64_t i = chunk + lane; i < end; i += 32) {
        const float factor = p.factor[base + i];
        float g = 0.0f;
        if (factor != 0.0f) {
          const Tap at = source_tap(p.columns, i);
          const int source = low + (int)(at.first - left) + 1;
          const float value = fmaf(all_low[source + 1], at.upper, all_low[source] * at.lower);
          g = expf(value - p.log_sum[base + i]);
          if (read_label(p.labels, p.label_type, base + i) == c) g -= 1.0f;
          g *= factor;
        }
        all_pixels[pixels + (int)(i - chunk)] = g;
      }
      __syncwarp();
      for (int64_t i = mine[0] > chunk ? mine[0] : chunk; i < mine[2] && i < end; ++i) {
        const Tap at = source_tap(p.columns, i);
        const float weight = i < mine[1] ? at.upper : x + 1 < width ? at.lower : at.lower + at.upper;
        gathered = fmaf(all_pixels[pixels + (int)(i - chunk)], weight, gathered);
      }
      __syncwarp();
    }
    if (tap.first < top) {  // only its second source is here
      here = fmaf(gathered, tap.upper, here);
    } else if (second > tap.first) {
      here = fmaf(gathered, tap.lower, here);
      below = fmaf(gathered, tap.upper, below);
    } else {
      here = fmaf(gathered, tap.lower + tap.upper, here);
    }
  }
  for (; row < bottom; ++row) {
    if (x < width) grad[row * width + x] = here;
    here = below;
    below = 0.0f;
  }
}

}  // namespace mesa
