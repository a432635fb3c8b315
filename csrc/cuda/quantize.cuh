#pragma once
// Quantising and back. See codes.cuh for what the kernels share.
#include "codes.cuh"

namespace mesa {

__global__ void clear_ranges_kernel(float* observed, int64_t groups) {
  for (int64_t g = thread_index(); g < groups; g += thread_count()) {
    observed[2 * g] = INFINITY;
    observed[2 * g + 1] = -INFINITY;
  }
}

__global__ void update_ranges_kernel(float* running, const float* __restrict__ observed, float decay, int64_t groups) {
  for (int64_t g = thread_index(); g < groups; g += thread_count()) {
    const float lo = observed[2 * g], hi = observed[2 * g + 1];
    if (lo <= hi) {
      running[2 * g] = decay * running[2 * g] + (1.0f - decay) * lo;
      running[2 * g + 1] = decay * running[2 * g + 1] + (1.0f - decay) * hi;
    }
  }
}

// Ranges given for each group; this tensor's own are collected on the way. BITS 0: collected only.
// V values a thread and row: 16 bytes in, V*BITS/8 bytes out, both contiguous over a warp.
template <class T, int BITS>
__global__ void __launch_bounds__(kCodeThreads, 4)
    quantize_groups_kernel(const T* __restrict__ x, View3 view, Columns plan, const float* __restrict__ ranges,
                           Rounding rounding, uint8_t* __restrict__ codes, float* observed) {
  constexpr int V = kVector<T>;
  MESA_SHARED(int, table, 2 * kTableGroups);
  table_clear(table, view.groups);
  Offsets offsets(rounding);
  for (int64_t pass = 0; pass < plan.passes; ++pass) {
    const Place at = place_of(plan, pass);
    const int64_t group = at.valid ? divide(at.column * V, view.inner).quotient : -1;
    Range range;
    if (at.valid) {
      const T* p = x + group * view.group_stride + (at.column * V - group * view.inner);
      Step step{};
      if (BITS) step = make_step(ranges[2 * group], ranges[2 * group + 1], kTopCode<BITS>);
      p += at.row * view.outer_stride;
      const int64_t jump = plan.row_lanes * plan.columns * V, jump_in = plan.row_lanes * view.outer_stride;
      const int64_t n = plan.rows * plan.columns * V;
      for (int64_t index = (at.row * plan.columns + at.column) * V; index < n; index += kInFlight<T> * jump) {
        Pack<T, V> in[kInFlight<T>];
        MESA_UNROLL
        for (int j = 0; j < kInFlight<T>; ++j)
          if (index + j * jump < n) in[j] = load_pack<V>(p + j * jump_in);
        p += kInFlight<T> * jump_in;
        MESA_UNROLL
        for (int j = 0; j < kInFlight<T>; ++j) {
          const int64_t i = index + j * jump;
          if (i >= n) break;
          float v[V];
          MESA_UNROLL
          for (int k = 0; k < V; ++k) v[k] = to_float(in[j].v[k]);
          range.add(v);
          if constexpr (BITS > 0) {
            float u[V];
            uint32_t c[V];
            offsets.get(i, u);
            MESA_UNROLL
            for (int k = 0; k < V; ++k) c[k] = encode_device(v[k], step, u[k], kTopCode<BITS>);
            store_codes<BITS>(codes + i * BITS / 8, c);
          }
        }
      }
    }
    table_add_warp(table, observed, view.groups, group, range);
  }
  table_flush(table, observed, view.groups);
}

// The same for any strides and sizes, 8 values a thread, loaded one by one.
template <class T, int BITS>
__global__ void __launch_bounds__(kCodeThreads, 4)
    quantize_groups_any_kernel(const T* __restrict__ x, View3 view, int64_t n, const float* __restrict__ ranges,
                               Rounding rounding, uint8_t* __restrict__ codes, float* observed) {
  MESA_SHARED(int, table, 2 * kTableGroups);
  table_clear(table, view.groups);
  Offsets offsets(rounding);
  for (int64_t first = thread_index() * 8; first < n; first += thread_count() * 8) {
    const Quotient row = divide(first, view.inner), block = divide(row.quotient, view.groups);
    int64_t outer = block.quotient, group = block.remainder, i = row.remainder;
    float u[8];
    uint32_t c[8] = {};
    offsets.get(first, u);
    Range range;
    const int count = n - first < 8 ? (int)(n - first) : 8;
    for (int k = 0; k < count; ++k) {
      const float v = to_float(x[outer * view.outer_stride + group * view.group_stride + i * view.inner_stride]);
      range.add(v);
      if constexpr (BITS > 0)
        c[k] = encode_device(v, make_step(ranges[2 * group], ranges[2 * group + 1], kTopCode<BITS>), u[k],
                             kTopCode<BITS>);
      if (++i == view.inner) {
        table_add(table, observed, view.groups, group, range);
        range = Range();
        i = 0;
        if (++group == view.groups) {
          group = 0;
          ++outer;
        }
      }
    }
    if (i) table_add(table, observed, view.groups, group, range);
    if constexpr (BITS > 0) store_codes_until<BITS>(codes + first * BITS / 8, c, count);
  }
  table_flush(table, observed, view.groups);
}

// A block of values to a team of `team` neighbouring lanes (a power of two); a lane holds RUNS runs of V values in
// registers between finding the range and encoding.
template <class T, int BITS, int RUNS>
__global__ void __launch_bounds__(kCodeThreads, RUNS > kInFlight<T> ? 2 : 4)
    quantize_blocks_kernel(const T* __restrict__ x, View3 view, bool contiguous, int64_t n, int block_size, int team,
                           Rounding rounding, uint8_t* __restrict__ codes, uint32_t* __restrict__ ranges) {
  constexpr int V = kVector<T>;
  const int lane = lane_id(), member = lane & (team - 1), teams = 32 / team;
  const int64_t blocks = (n + block_size - 1) / block_size;
  const int64_t step_blocks = thread_count() / 32 * teams;
  Offsets offsets(rounding);
  // Whole warps stay in the loop together.
  for (int64_t first = thread_index() / 32 * teams; first < blocks; first += step_blocks) {
    const int64_t block = first + lane / team, start = block * block_size;
    const int64_t left = n - start;
    const int count = left <= 0 ? 0 : left < block_size ? (int)left : block_size;
    Pack<T, V> in[RUNS];
    MESA_UNROLL
    for (int j = 0; j < RUNS; ++j) {
      const int at = (j * team + member) * V;
      if (at + V <= count) {
        in[j] = load_pack<V>(x + (contiguous ? start + at : offset_of(view, start + at)));
      } else {  // Beyond the end: NaN, which no range counts and which becomes code 0. Only a contiguous x ends so.
        MESA_UNROLL
        for (int k = 0; k < V; ++k) in[j].v[k] = at + k < count ? x[start + at + k] : from_float<T>(NAN);
      }
    }
    Range range;
    MESA_UNROLL
    for (int j = 0; j < RUNS; ++j) {
      float v[V];
      MESA_UNROLL
      for (int k = 0; k < V; ++k) v[k] = to_float(in[j].v[k]);
      range.add(v);
    }
    const uint32_t bits = block_range_bits(lanes_min(range.lo, team), lanes_max(range.hi, team));
    const Step step = block_step(bits, kTopCode<BITS>);
    if (member == 0 && count > 0) ranges[block] = bits;
    MESA_UNROLL
    for (int j = 0; j < RUNS; ++j) {
      const int at = (j * team + member) * V;
      if (at >= count) break;
      float u[V];
      uint32_t c[V];
      offsets.get(start + at, u);
      MESA_UNROLL
      for (int k = 0; k < V; ++k) c[k] = encode_device(to_float(in[j].v[k]), step, u[k], kTopCode<BITS>);
      uint8_t* out = codes + (start + at) * BITS / 8;
      if (at + V <= count) {
        store_codes<BITS>(out, c);
      } else {
        store_codes_until<BITS>(out, c, count - at);
      }
    }
  }
}

// The same for any strides, a block to a warp, every value read twice.
template <class T, int BITS>
__global__ void __launch_bounds__(kCodeThreads, 4)
    quantize_blocks_any_kernel(const T* __restrict__ x, View3 view, int64_t n, int block_size, Rounding rounding,
                               uint8_t* __restrict__ codes, uint32_t* __restrict__ ranges) {
  const int lane = lane_id();
  const int64_t blocks = (n + block_size - 1) / block_size;
  Offsets offsets(rounding);
  for (int64_t block = thread_index() / 32; block < blocks; block += thread_count() / 32) {
    const int64_t start = block * block_size, end = start + block_size < n ? start + block_size : n;
    Range range;
    for (int64_t i = start + lane; i < end; i += 32) range.add(to_float(x[offset_of(view, i)]));
    const uint32_t bits = block_range_bits(lanes_min(range.lo), lanes_max(range.hi));
    const Step step = block_step(bits, kTopCode<BITS>);
    if (lane == 0) ranges[block] = bits;
    for (int64_t i = start + 8 * lane; i < end; i += 8 * 32) {
      const int count = end - i < 8 ? (int)(end - i) : 8;
      float u[8];
      uint32_t c[8];
      offsets.get(i, u);
      MESA_UNROLL
      for (int k = 0; k < 8; ++k)
        c[k] = k < count ? encode_device(to_float(x[offset_of(view, i + k)]), step, u[k], kTopCode<BITS>) : 0;
      store_codes_until<BITS>(codes + i * BITS / 8, c, count);
    }
  }
}

struct Affine {
  const float *scale, *shift;  // either may be null
  int64_t channels, spatial;   // channels 0: neither
  bool relu;
};
__device__ __forceinline__ float finish(float v, float scale, bool scaled, float shift, bool shifted, bool relu) {
  if (scaled) v = v * scale;
  if (shifted) v = v + shift;
  return relu && v < 0.0f ? 0.0f : v;
}

// Codes to values. The tensor is taken as rows of plan.columns * V values, such that a column lies in one group (head)
// and has one channel an element; n cuts the last row off.
template <class T, int BITS, bool BLOCKS, bool AFFINE>
__global__ void __launch_bounds__(kCodeThreads, BLOCKS && AFFINE ? 3 : 4)
    dequantize_kernel(const uint8_t* __restrict__ codes, const void* __restrict__ ranges, int64_t groups,
                      int64_t inner, BlockIndex blocks, Columns plan, int64_t n, Affine affine, T* __restrict__ y) {
  constexpr int V = kVector<T>;
  for (int64_t pass = 0; pass < plan.passes; ++pass) {
    const Place at = place_of(plan, pass);
    if (!at.valid) continue;
    Step step{};
    if (!BLOCKS) {
      const int64_t group = divide(at.column * V, inner).quotient;
      const float* r = static_cast<const float*>(ranges) + 2 * group;
      step = make_step(r[0], r[1], kTopCode<BITS>);
    }
    float scale[AFFINE ? V : 1], shift[AFFINE ? V : 1];
    if constexpr (AFFINE) {
      if (affine.channels) {
        MESA_UNROLL
        for (int k = 0; k < V; ++k) {
          const int64_t channel = divide(divide(at.column * V + k, affine.spatial).quotient, affine.channels).remainder;
          scale[k] = affine.scale ? affine.scale[channel] : 1.0f;
          shift[k] = affine.shift ? affine.shift[channel] : 0.0f;
        }
      }
    }
    const int64_t jump = plan.row_lanes * plan.columns * V;
    for (int64_t first = (at.row * plan.columns + at.column) * V; first < n; first += kInFlight<T> * jump) {
      Pack<uint8_t, V * BITS / 8> in[kInFlight<T>];
      uint32_t range[kInFlight<T>];
      MESA_UNROLL
      for (int j = 0; j < kInFlight<T>; ++j) {
        const int64_t index = first + j * jump;
        if (index + V <= n) {
          in[j] = load_codes<BITS, V>(codes + index * BITS / 8);
          if (BLOCKS) range[j] = static_cast<const uint32_t*>(ranges)[blocks.of(index)];
        }
      }
      MESA_UNROLL
      for (int j = 0; j < kInFlight<T>; ++j) {
        const int64_t index = first + j * jump;
        if (index >= n) break;
        if (index + V <= n) {
          if (BLOCKS) step = block_step(range[j], kTopCode<BITS>);
          Pack<T, V> out;
          MESA_UNROLL
          for (int k = 0; k < V; ++k) {
            float v = decode(code_of<BITS, V>(in[j], k), step);
            if (AFFINE)
              v = finish(v, scale[AFFINE ? k : 0], affine.scale, shift[AFFINE ? k : 0], affine.shift, affine.relu);
            out.v[k] = from_float<T>(v);
          }
          store_pack<V>(y + index, out);
        } else {
          if (BLOCKS) step = block_step(static_cast<const uint32_t*>(ranges)[blocks.of(index)], kTopCode<BITS>);
          MESA_UNROLL
          for (int k = 0; k < V; ++k) {
            if (index + k >= n) break;
            float v = decode(code_at<BITS>(codes, index + k), step);
            if (AFFINE)
              v = finish(v, scale[AFFINE ? k : 0], affine.scale, shift[AFFINE ? k : 0], affine.shift, affine.relu);
            y[index + k] = from_float<T>(v);
          }
        }
      }
    }
  }
}

// The same, one value a thread, for groups and channels that fit no vector.
template <class T, int BITS>
__global__ void __launch_bounds__(kCodeThreads, 4)
    dequantize_any_kernel(const uint8_t* __restrict__ codes, const void* __restrict__ ranges, int64_t groups,
                          int64_t inner, BlockIndex blocks, int64_t n, Affine affine, T* __restrict__ y) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    Step step;
    if (blocks.size) {
      step = block_step(static_cast<const uint32_t*>(ranges)[blocks.of(i)], kTopCode<BITS>);
    } else {
      const float* r = static_cast<const float*>(ranges) + 2 * divide(divide(i, inner).quotient, groups).remainder;
      step = make_step(r[0], r[1], kTopCode<BITS>);
    }
    float v = decode(code_at<BITS>(codes, i), step), scale = 1.0f, shift = 0.0f;
    if (affine.channels) {
      const int64_t channel = divide(divide(i, affine.spatial).quotient, affine.channels).remainder;
      if (affine.scale) scale = affine.scale[channel];
      if (affine.shift) shift = affine.shift[channel];
    }
    y[i] = from_float<T>(finish(v, scale, affine.scale, shift, affine.shift, affine.relu));
  }
}

}  // namespace mesa
