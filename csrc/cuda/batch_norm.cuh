#pragma once
// BatchNorm over [batch, channels, positions], and the ReLU behind it, with x^ encoded. A run of 8 values makes whole
// bytes of codes and mask.
#include "quantize.cuh"

namespace mesa {

constexpr int kNormRun = 8;

__device__ __forceinline__ int64_t channel_of(int64_t index, int64_t positions, int64_t channels) {
  return divide(divide(index, positions).quotient, channels).remainder;
}

// ---- statistics ----------------------------------------------------------------------------------------------------
constexpr int kNormWarps = kCodeThreads / 32;
// Sum over the block; every thread gets it. `shared` holds a value a warp.
template <class S>
__device__ __forceinline__ float block_sum(S&& shared, float v) {
  v = lanes_sum(v);
  __syncthreads();  // the last sum has been read
  if (lane_id() == 0) shared[(int)(threadIdx.x / 32)] = v;
  __syncthreads();
  float s = 0.0f;
  for (int w = 0; w < kNormWarps; ++w) s += shared[w];
  return s;
}

// A channel as one sequence of batch * positions values, in chunks of 16 values a thread. Each chunk's mean and sum of
// squared deviations are found in registers and merged in float64 (Chan et al. 1983), in a fixed order.
// scratch[channel][split]: count, mean, sum of squared deviations.
template <class T, bool VECTOR>
__global__ void __launch_bounds__(kCodeThreads, 4)
    batch_norm_stats_kernel(const T* __restrict__ x, int64_t batch, int64_t channels, int64_t positions,
                            double* __restrict__ scratch) {
  constexpr int V = VECTOR ? kVector<T> : 1, RUNS = kRunElements / V, kChunk = kCodeThreads * kRunElements;
  MESA_SHARED(float, shared, kNormWarps);
  const int64_t total = batch * positions;
  for (int64_t channel = blockIdx.y; channel < channels; channel += gridDim.y) {
    double count = 0.0, mean = 0.0, deviation = 0.0;
    for (int64_t chunk = (int64_t)blockIdx.x * kChunk; chunk < total; chunk += (int64_t)gridDim.x * kChunk) {
      float v[RUNS][V], sum = 0.0f;
      MESA_UNROLL
      for (int j = 0; j < RUNS; ++j) {
        const int64_t e = chunk + ((int64_t)j * kCodeThreads + threadIdx.x) * V;
        MESA_UNROLL
        for (int k = 0; k < V; ++k) v[j][k] = 0.0f;
        if (e < total) {
          const Quotient q = divide(e, positions);
          const T* p = x + (q.quotient * channels + channel) * positions + q.remainder;
          if (VECTOR) {
            Run<T, VECTOR ? V : kVector<T>> run;
            run.load(p);
            MESA_UNROLL
            for (int k = 0; k < V; ++k) v[j][k] = run.at(k);
          } else {
            v[j][0] = to_float(*p);
          }
        }
        MESA_UNROLL
        for (int k = 0; k < V; ++k) sum += v[j][k];
      }
      const float n = (float)(total - chunk < kChunk ? total - chunk : kChunk);
      const float m = block_sum(shared, sum) / n;
      float square = 0.0f;
      MESA_UNROLL
      for (int j = 0; j < RUNS; ++j) {
        const int64_t e = chunk + ((int64_t)j * kCodeThreads + threadIdx.x) * V;
        if (e >= total) break;
        MESA_UNROLL
        for (int k = 0; k < V; ++k) square += (v[j][k] - m) * (v[j][k] - m);
      }
      square = block_sum(shared, square);
      if (threadIdx.x == 0) {
        const double both = count + n, delta = (double)m - mean;
        mean += delta * (n / both);
        deviation += (double)square + delta * delta * (count * n / both);
        count = both;
      }
    }
    if (threadIdx.x == 0) {
      double* out = scratch + 3 * (channel * gridDim.x + blockIdx.x);
      out[0] = count;
      out[1] = mean;
      out[2] = deviation;
    }
  }
}
// ---- forward -------------------------------------------------------------------------------------------------------
template <class T>
struct NormalisedChannels {
  static constexpr int kBlocksPerSm = 3;
  static constexpr bool kSameInRows = true;
  T* y;
  uint8_t* mask;  // null: no ReLU
  const float *mean, *rstd, *weight, *bias;
  int64_t channels, positions;
  struct Column {
    float mean, rstd, weight, bias;
  };
  __device__ __forceinline__ Column column(int64_t index) const {
    const int64_t c = channel_of(index, positions, channels);
    return {mean[c], rstd[c], weight ? weight[c] : 1.0f, bias ? bias[c] : 0.0f};
  }
  __device__ __forceinline__ float value(const Column& c, float raw) const { return (raw - c.mean) * c.rstd; }
  __device__ __forceinline__ float value_at(int64_t index, float raw) const { return value(column(index), raw); }
  // y as it is kept: rounded, then clamped (NaN stays).
  __device__ __forceinline__ float finish(const Column& c, float v) const {
    if (weight) v = v * c.weight;
    if (bias) v = v + c.bias;
    v = to_float(from_float<T>(v));
    return mask && v <= 0.0f ? 0.0f : v;
  }
  template <int V>
  __device__ __forceinline__ void emit(const Column& c, int64_t index, const float (&)[V], const float (&v)[V]) const {
    static_assert(V == 8, "one byte of the mask");
    float out[V];
    uint32_t bits = 0;
    MESA_UNROLL
    for (int k = 0; k < V; ++k) {
      out[k] = finish(c, v[k]);
      bits |= (uint32_t)(out[k] > 0.0f) << k;
    }
    store_run(y + index, out);
    if (mask) mask[index >> 3] = (uint8_t)bits;
  }
  template <int V>
  __device__ __forceinline__ void emit_some(int64_t index, const float (&raw)[V], int count) const {
    static_assert(V == 8, "one byte of the mask");
    uint32_t bits = 0;
    MESA_UNROLL
    for (int k = 0; k < V; ++k) {
      if (k >= count) break;
      const Column c = column(index + k);
      const float out = finish(c, value(c, raw[k]));
      bits |= (uint32_t)(out > 0.0f) << k;
      y[index + k] = from_float<T>(out);
    }
    if (mask) mask[index >> 3] = (uint8_t)bits;
  }
};

// ---- backward ------------------------------------------------------------------------------------------------------
// partial[split][2][channels]: sums of g and of g * x^.
template <class T, bool VECTOR>
__global__ void __launch_bounds__(kCodeThreads, 4)
    batch_norm_sums_kernel(const T* __restrict__ grad, const uint8_t* __restrict__ mask, int64_t batch, int64_t channels,
                           int64_t positions, const uint8_t* __restrict__ codes, const void* __restrict__ ranges,
                           BlockIndex blocks, int bits, int64_t groups, float* __restrict__ partial) {
  constexpr int V = VECTOR ? kNormRun : 1, RUNS = 2;
  MESA_SHARED(float, shared, kNormWarps);
  const int64_t total = batch * positions;
  for (int64_t channel = blockIdx.y; channel < channels; channel += gridDim.y) {
    Step step{};
    if (!blocks.size) {
      const float* r = static_cast<const float*>(ranges) + 2 * divide(channel, channels / groups).quotient;
      step = make_step(r[0], r[1], top_code(bits));
    }
    float sum_g = 0.0f, sum_gx = 0.0f;
    const int64_t stride = thread_count() * V;
    for (int64_t first = thread_index() * V; first < total; first += RUNS * stride) {
      Run<T, kNormRun> g[RUNS];
      CodeRun<kNormRun> code[RUNS];
      uint32_t kept[RUNS], range[RUNS];
      int64_t index[RUNS];
      MESA_UNROLL
      for (int j = 0; j < RUNS; ++j) {
        const int64_t e = first + j * stride;
        if (e >= total) continue;
        const Quotient q = divide(e, positions);
        index[j] = (q.quotient * channels + channel) * positions + q.remainder;
        if (blocks.size) range[j] = static_cast<const uint32_t*>(ranges)[blocks.of(index[j])];
        kept[j] = mask ? (uint32_t)mask[index[j] >> 3] >> (VECTOR ? 0 : index[j] & 7) : 0xffu;
        if (VECTOR) {
          g[j].load(grad + index[j]);
          code[j].load(codes + index[j] * bits / 8, bits);
        }
      }
      MESA_UNROLL
      for (int j = 0; j < RUNS; ++j) {
        if (first + j * stride >= total) break;
        if (blocks.size) step = block_step(range[j], top_code(bits));
        MESA_UNROLL
        for (int k = 0; k < V; ++k) {
          const float raw = VECTOR ? g[j].at(k) : to_float(grad[index[j]]);
          const float v = kept[j] >> k & 1 ? raw : 0.0f;
          sum_g += v;
          sum_gx += v * decode(VECTOR ? code[j].at(k, bits) : code_at(codes, index[j], bits), step);
        }
      }
    }
    sum_g = block_sum(shared, sum_g);
    sum_gx = block_sum(shared, sum_gx);
    if (threadIdx.x == 0) {
      partial[(2 * (int64_t)blockIdx.x) * channels + channel] = sum_g;
      partial[(2 * (int64_t)blockIdx.x + 1) * channels + channel] = sum_gx;
    }
  }
}

// Sink: (g - mean_g - x^ * mean_gx) * weight / sigma.
template <class T>
struct ChannelGradient {
  static constexpr int kBlocksPerSm = 3, kBlocksPerSmInBlocks = 2;
  const T* grad;
  const uint8_t* mask;
  const float *rstd, *weight, *mean_g, *mean_gx;
  T* gx;
  int64_t channels, positions;
  struct Column {
    float scale, mean_g, mean_gx;
  };
  struct Input {
    Run<T, kNormRun> grad;
    uint32_t kept;
  };
  __device__ __forceinline__ Column column(int64_t index) const {
    const int64_t c = channel_of(index, positions, channels);
    return {weight ? rstd[c] * weight[c] : rstd[c], mean_g[c], mean_gx[c]};
  }
  __device__ __forceinline__ void load(Input& in, int64_t index) const {
    in.grad.load(grad + index);
    in.kept = mask ? mask[index >> 3] : 0xffu;
  }
  __device__ __forceinline__ float finish(const Column& c, float g, float v) const {
    return (g - c.mean_g - v * c.mean_gx) * c.scale;
  }
  template <int V>
  __device__ __forceinline__ void run(const Column& c, const Input& in, int64_t index, const float (&v)[V]) const {
    float out[V];
    MESA_UNROLL
    for (int k = 0; k < V; ++k) out[k] = finish(c, in.kept >> k & 1 ? in.grad.at(k) : 0.0f, v[k]);
    store_run(gx + index, out);
  }
  __device__ __forceinline__ void one(int64_t index, float v) const {
    const bool kept = !mask || (mask[index >> 3] >> (index & 7) & 1);
    gx[index] = from_float<T>(finish(column(index), kept ? to_float(grad[index]) : 0.0f, v));
  }
};

}  // namespace mesa
