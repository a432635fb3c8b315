#pragma once
// LayerNorm that encodes x^ = (x - mean) / sigma, and its backward from the codes. A row belongs to a team of
// neighbouring lanes, which keep it in registers: x is read once.
#include "quantize.cuh"

namespace mesa {

constexpr int kRowThreads = 128;

struct Rows {
  int64_t rows;
  int channels, team, runs;  // a lane holds `runs` runs of a row
};
// The team (a power of two) that leaves fewest lanes idle with at most `most` runs each; 0 where none is wide enough.
inline Rows plan_rows(int64_t rows, int64_t channels, int V, int most) {
  Rows best{rows, (int)channels, 0, 0};
  const int64_t runs = channels / V;
  double least = 1e30;
  for (int team = 32; team >= 1; team /= 2) {
    const int64_t each = ceil_div(runs, team);
    if (each > most) continue;
    const double slots = (double)each * team;
    if (slots < least) {
      least = slots;
      best.team = team;
      best.runs = (int)each;
    }
  }
  return best;
}

// Statistics of a row of any length and stride, a warp a row.
template <class T>
__global__ void __launch_bounds__(kCodeThreads)
    layer_norm_stats_kernel(const T* __restrict__ x, int64_t rows, int64_t channels, int64_t row_stride,
                            int64_t channel_stride, float eps, float* __restrict__ mean, float* __restrict__ rstd) {
  const int lane = lane_id();
  for (int64_t row = thread_index() / 32; row < rows; row += thread_count() / 32) {
    const T* p = x + row * row_stride;
    float sum = 0.0f;
    for (int64_t c = lane; c < channels; c += 32) sum += to_float(p[c * channel_stride]);
    const float m = lanes_sum(sum) / (float)channels;
    float square = 0.0f;
    for (int64_t c = lane; c < channels; c += 32) {
      const float d = to_float(p[c * channel_stride]) - m;
      square += d * d;
    }
    const float r = 1.0f / sqrtf(lanes_sum(square) / (float)channels + eps);
    if (lane == 0) {
      mean[row] = m;
      rstd[row] = r;
    }
  }
}

// The same, and with ENCODE normalising and encoding too, with one range a group.
template <class T, bool ENCODE, int RUNS>
__global__ void __launch_bounds__(kRowThreads, RUNS * kVector<T> > 16 ? 3 : 5)
    layer_norm_rows_kernel(const T* __restrict__ x, int64_t row_stride, Rows plan, int64_t groups,
                           const float* __restrict__ weight, const float* __restrict__ bias, float eps,
                           const float* __restrict__ ranges, int bits, Rounding rounding, T* __restrict__ y,
                           float* __restrict__ mean, float* __restrict__ rstd, uint8_t* __restrict__ codes,
                           float* observed) {
  constexpr int V = kVector<T>;
  MESA_SHARED(int, table, 2 * kTableGroups);
  table_clear(table, ENCODE ? groups : 0);
  const int lane = lane_id(), member = lane & (plan.team - 1), teams = 32 / plan.team;
  const float inverse = 1.0f / (float)plan.channels;
  Offsets offsets(rounding);
  Range range[ENCODE ? RUNS : 1];
  // Whole warps stay in the loop together.
  for (int64_t first = thread_index() / 32 * teams; first < plan.rows; first += thread_count() / 32 * teams) {
    const int64_t row = first + lane / plan.team;
    const bool valid = row < plan.rows;
    Run<T, V> in[RUNS];
    MESA_UNROLL
    for (int j = 0; j < RUNS; ++j) {
      const int c = (j * plan.team + member) * V;
      if (valid && c < plan.channels) in[j].load(x + row * row_stride + c);
    }
    float v[RUNS][V], sum = 0.0f;
    MESA_UNROLL
    for (int j = 0; j < RUNS; ++j) {
      const bool here = valid && (j * plan.team + member) * V < plan.channels;
      MESA_UNROLL
      for (int k = 0; k < V; ++k) {
        v[j][k] = here ? in[j].at(k) : 0.0f;
        sum += v[j][k];
      }
    }
    const float m = lanes_sum(sum, plan.team) * inverse;
    float square = 0.0f;
    MESA_UNROLL
    for (int j = 0; j < RUNS; ++j) {
      const bool here = (j * plan.team + member) * V < plan.channels;
      MESA_UNROLL
      for (int k = 0; k < V; ++k) {
        v[j][k] = here ? v[j][k] - m : 0.0f;
        square += v[j][k] * v[j][k];
      }
    }
    const float r = 1.0f / sqrtf(lanes_sum(square, plan.team) * inverse + eps);
    if (!valid) continue;
    if (member == 0) {
      rstd[row] = r;
      if (!ENCODE) mean[row] = m;
    }
    if constexpr (ENCODE) {
      MESA_UNROLL
      for (int j = 0; j < RUNS; ++j) {
        const int c = (j * plan.team + member) * V;
        if (c >= plan.channels) break;
        const int64_t index = row * plan.channels + c;
        float out[V], u[V];
        CodeRun<V> code;
        MESA_UNROLL
        for (int k = 0; k < V; ++k) out[k] = v[j][k] = v[j][k] * r;
        if (weight) {
          Run<float, V> w;
          w.load(weight + c);
          MESA_UNROLL
          for (int k = 0; k < V; ++k) out[k] = out[k] * w.at(k);
        }
        if (bias) {
          Run<float, V> b;
          b.load(bias + c);
          MESA_UNROLL
          for (int k = 0; k < V; ++k) out[k] = out[k] + b.at(k);
        }
        store_run(y + index, out);
        range[j].add(v[j]);
        const int64_t group = c / (plan.channels / (int)groups);
        const Step step = make_step(ranges[2 * group], ranges[2 * group + 1], top_code(bits));
        offsets.get(index, u);
        MESA_UNROLL
        for (int k = 0; k < V; ++k) code.set(k, encode_device(v[j][k], step, u[k], top_code(bits)), bits);
        code.store(codes + index * bits / 8, bits);
      }
    }
  }
  if constexpr (ENCODE) {
    MESA_UNROLL
    for (int j = 0; j < RUNS; ++j) {
      const int c = (j * plan.team + member) * V;
      table_add_warp(table, observed, groups, c < plan.channels ? c / (plan.channels / (int)groups) : -1, range[j]);
    }
    table_flush(table, observed, groups);
  }
}

// Source: x^ from statistics that are there already.
template <class T>
struct NormalisedRows {
  static constexpr int kBlocksPerSm = 3;
  static constexpr bool kSameInRows = false;
  T* y;
  const float *mean, *rstd, *weight, *bias;
  int64_t channels;
  struct Column {
    float mean, rstd;
    int64_t channel;
  };
  __device__ __forceinline__ Column column(int64_t index) const {
    const Quotient q = divide(index, channels);
    return {mean[q.quotient], rstd[q.quotient], q.remainder};
  }
  __device__ __forceinline__ float value(const Column& c, float raw) const { return (raw - c.mean) * c.rstd; }
  __device__ __forceinline__ float value_at(int64_t index, float raw) const { return value(column(index), raw); }
  __device__ __forceinline__ float finish(int64_t channel, float v) const {
    if (weight) v = v * weight[channel];
    if (bias) v = v + bias[channel];
    return v;
  }
  template <int V>
  __device__ __forceinline__ void emit(const Column& c, int64_t index, const float (&)[V], const float (&v)[V]) const {
    float out[V];
    MESA_UNROLL
    for (int k = 0; k < V; ++k) out[k] = v[k];
    if (weight) {
      Run<float, V> w;
      w.load(weight + c.channel);
      MESA_UNROLL
      for (int k = 0; k < V; ++k) out[k] = out[k] * w.at(k);
    }
    if (bias) {
      Run<float, V> b;
      b.load(bias + c.channel);
      MESA_UNROLL
      for (int k = 0; k < V; ++k) out[k] = out[k] + b.at(k);
    }
    store_run(y + index, out);
  }
  template <int V>
  __device__ __forceinline__ void emit_some(int64_t index, const float (&raw)[V], int count) const {
    MESA_UNROLL
    for (int k = 0; k < V; ++k) {
      if (k >= count) break;
      const Column c = column(index + k);
      y[index + k] = from_float<T>(finish(c.channel, value(c, raw[k])));
    }
  }
};

// ---- backward ------------------------------------------------------------------------------------------------------
constexpr int kBackwardRun = 4;

// Gradient of x, and each block's sums of grad * x^ and grad over its rows: partial[block][2][C].
template <class T, bool BLOCKS, int RUNS>
__global__ void __launch_bounds__(kRowThreads, RUNS <= 4 ? 4 : sizeof(T) == 2 && !BLOCKS ? 2 : 3)
    layer_norm_backward_kernel(const T* __restrict__ grad, Rows plan, const uint8_t* __restrict__ codes,
                               const void* __restrict__ ranges, BlockIndex blocks, int bits, int64_t groups,
                               const float* __restrict__ rstd, const float* __restrict__ weight, T* __restrict__ gx,
                               float* __restrict__ partial) {
  constexpr int V = kBackwardRun, kWarps = kRowThreads / 32;
  MESA_DYNAMIC_SHARED(float, shared);  // [warps][2][C]
  const int lane = lane_id(), warp = (int)(threadIdx.x / 32), member = lane & (plan.team - 1), teams = 32 / plan.team;
  const float inverse = 1.0f / (float)plan.channels;
  float sum_gx[RUNS][V] = {}, sum_g[RUNS][V] = {}, lo[RUNS], step[RUNS];
  if (!BLOCKS) {  // a lane's columns are the same in every row
    MESA_UNROLL
    for (int j = 0; j < RUNS; ++j) {
      const int c = (j * plan.team + member) * V;
      if (c >= plan.channels) break;
      const float* r = static_cast<const float*>(ranges) + 2 * (c / (plan.channels / (int)groups));
      const Step s = make_step(r[0], r[1], top_code(bits));
      lo[j] = s.lo;
      step[j] = s.step;
    }
  }
  for (int64_t first = thread_index() / 32 * teams; first < plan.rows; first += thread_count() / 32 * teams) {
    const int64_t row = first + lane / plan.team;
    const bool valid = row < plan.rows;
    // Gradients and codes stay packed between the two uses: converting twice is cheaper than the registers.
    Pack<T, V> in[RUNS];
    CodeRun<V> code[RUNS];
    MESA_UNROLL
    for (int j = 0; j < RUNS; ++j) {
      const int c = (j * plan.team + member) * V;
      if (!valid || c >= plan.channels) continue;
      const int64_t index = row * plan.channels + c;
      in[j] = load_pack<V>(grad + index);
      code[j].load(codes + index * bits / 8, bits);
    }
    float first_sum = 0.0f, second_sum = 0.0f;
    MESA_UNROLL
    for (int j = 0; j < RUNS; ++j) {
      const int c = (j * plan.team + member) * V;
      if (!valid || c >= plan.channels) continue;
      if (BLOCKS) {
        const uint32_t range = static_cast<const uint32_t*>(ranges)[blocks.of(row * plan.channels + c)];
        const Step s = block_step(range, top_code(bits));
        lo[j] = s.lo;
        step[j] = s.step;
      }
      Run<float, V> w;
      if (weight) w.load(weight + c);
      MESA_UNROLL
      for (int k = 0; k < V; ++k) {
        const float gy = to_float(in[j].v[k]), n = decode(code[j].at(k, bits), Step{lo[j], step[j], 0.0f});
        sum_gx[j][k] += gy * n;
        sum_g[j][k] += gy;
        const float g = weight ? gy * w.at(k) : gy;
        first_sum += g;
        second_sum += g * n;
      }
    }
    const float a = lanes_sum(first_sum, plan.team) * inverse, b = lanes_sum(second_sum, plan.team) * inverse;
    if (!valid) continue;
    const float r = rstd[row];
    MESA_UNROLL
    for (int j = 0; j < RUNS; ++j) {
      const int c = (j * plan.team + member) * V;
      if (c >= plan.channels) break;
      Run<float, V> w;
      if (weight) w.load(weight + c);
      Pack<T, V> out;
      MESA_UNROLL
      for (int k = 0; k < V; ++k) {
        const float gy = to_float(in[j].v[k]), n = decode(code[j].at(k, bits), Step{lo[j], step[j], 0.0f});
        out.v[k] = from_float<T>(((weight ? gy * w.at(k) : gy) - a - n * b) * r);
      }
      store_pack<V>(gx + row * plan.channels + c, out);
    }
  }
  // Teams of a warp, then warps, always in the same order.
  MESA_UNROLL
  for (int j = 0; j < RUNS; ++j) {
    const int c = (j * plan.team + member) * V;
    MESA_UNROLL
    for (int k = 0; k < V; ++k) {
      float x = sum_gx[j][k], s = sum_g[j][k];
      for (int o = plan.team; o < 32; o <<= 1) {
        x += __shfl_xor_sync(kFullWarp, x, o);
        s += __shfl_xor_sync(kFullWarp, s, o);
      }
      if (lane < plan.team && c < plan.channels) {
        shared[(warp * 2) * plan.channels + c + k] = x;
        shared[(warp * 2 + 1) * plan.channels + c + k] = s;
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * plan.channels; i += kRowThreads) {
    float s = 0.0f;
    for (int w = 0; w < kWarps; ++w) s += shared[w * 2 * plan.channels + i];
    partial[(int64_t)blockIdx.x * 2 * plan.channels + i] = s;
  }
}

struct AnyRow {  // x^ of one element, however the codes lie
  const uint8_t* codes;
  const void* ranges;
  BlockIndex blocks;
  int64_t channels, groups;
  int bits;
  __device__ __forceinline__ float at(int64_t row, int64_t channel) const {
    const int64_t index = row * channels + channel;
    Step step;
    if (blocks.size) {
      step = block_step(static_cast<const uint32_t*>(ranges)[blocks.of(index)], top_code(bits));
    } else {
      const float* r = static_cast<const float*>(ranges) + 2 * divide(channel, channels / groups).quotient;
      step = make_step(r[0], r[1], top_code(bits));
    }
    return decode(code_at(codes, index, bits), step);
  }
};
// Rows of any length, a block a row, read twice.
template <class T>
__global__ void __launch_bounds__(kCodeThreads, 4)
    layer_norm_backward_any_kernel(const T* __restrict__ grad, int64_t rows, AnyRow normalised,
                                   const float* __restrict__ rstd, const float* __restrict__ weight,
                                   T* __restrict__ gx) {
  constexpr int kWarps = kCodeThreads / 32;
  MESA_SHARED(float, sums, 2 * kWarps);
  const int64_t channels = normalised.channels;
  const int lane = lane_id(), warp = (int)(threadIdx.x / 32);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    float a = 0.0f, b = 0.0f;
    for (int64_t c = threadIdx.x; c < channels; c += kCodeThreads) {
      const float g = to_float(grad[row * channels + c]) * (weight ? weight[c] : 1.0f);
      a += g;
      b += g * normalised.at(row, c);
    }
    a = lanes_sum(a);
    b = lanes_sum(b);
    __syncthreads();  // the last row's sums have been read
    if (lane == 0) {
      sums[2 * warp] = a;
      sums[2 * warp + 1] = b;
    }
    __syncthreads();
    a = b = 0.0f;
    for (int w = 0; w < kWarps; ++w) {
      a += sums[2 * w];
      b += sums[2 * w + 1];
    }
    a /= (float)channels;
    b /= (float)channels;
    const float r = rstd[row];
    for (int64_t c = threadIdx.x; c < channels; c += kCodeThreads) {
      const float g = to_float(grad[row * channels + c]) * (weight ? weight[c] : 1.0f);
      gx[row * channels + c] = from_float<T>((g - a - normalised.at(row, c) * b) * r);
    }
  }
}
// partial[blockIdx.y][2][C]: sums over every gridDim.y-th row.
template <class T>
__global__ void __launch_bounds__(kCodeThreads)
    layer_norm_columns_kernel(const T* __restrict__ grad, int64_t rows, AnyRow normalised, float* __restrict__ partial) {
  const int64_t channels = normalised.channels;
  for (int64_t c = thread_index(); c < channels; c += thread_count()) {
    float x = 0.0f, s = 0.0f;
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
      const float g = to_float(grad[row * channels + c]);
      x += g * normalised.at(row, c);
      s += g;
    }
    partial[(int64_t)blockIdx.y * 2 * channels + c] = x;
    partial[(int64_t)blockIdx.y * 2 * channels + channels + c] = s;
  }
}

}  // namespace mesa
