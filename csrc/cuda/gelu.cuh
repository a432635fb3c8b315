#pragma once
// GELU on the way to codes, and GELU and its derivative from codes. The arithmetic is csrc/common/gelu.h's.
#include "../common/gelu.h"
#include "quantize.cuh"

namespace mesa {

__device__ __forceinline__ float gelu_value(float x, bool tanh) { return tanh ? gelu_tanh(x) : gelu(x); }
__device__ __forceinline__ float gelu_derivative(float x, bool tanh) { return tanh ? gelu_tanh_slope(x) : gelu_slope(x); }

// Source: x is encoded, GELU(x) is written.
template <class T>
struct GeluSource {
  static constexpr int kBlocksPerSm = 3;
  static constexpr bool kSameInRows = true;
  T* y;
  bool tanh;
  struct Column {};
  __device__ __forceinline__ Column column(int64_t) const { return {}; }
  __device__ __forceinline__ float value(Column, float raw) const { return raw; }
  __device__ __forceinline__ float value_at(int64_t, float raw) const { return raw; }
  template <int V>
  __device__ __forceinline__ void emit(Column, int64_t index, const float (&raw)[V], const float (&)[V]) const {
    float out[V];
    MESA_UNROLL
    for (int k = 0; k < V; ++k) out[k] = gelu_value(raw[k], tanh);
    store_run(y + index, out);
  }
  template <int V>
  __device__ __forceinline__ void emit_some(int64_t index, const float (&raw)[V], int count) const {
    MESA_UNROLL
    for (int k = 0; k < V; ++k)
      if (k < count) y[index + k] = from_float<T>(gelu_value(raw[k], tanh));
  }
};

// Sink: GELU(h), or grad * GELU'(h), evaluated for every value.
template <class T, bool BACKWARD>
struct GeluSink {
  static constexpr int kBlocksPerSm = 3, kBlocksPerSmInBlocks = 3;
  const T* grad;
  T* out;
  bool tanh;
  struct Column {};
  struct Input {
    Run<T, kVector<T>> grad;
  };
  __device__ __forceinline__ Column column(int64_t) const { return {}; }
  __device__ __forceinline__ void load(Input& in, int64_t index) const {
    if (BACKWARD) in.grad.load(grad + index);
  }
  template <int V>
  __device__ __forceinline__ void run(Column, const Input& in, int64_t index, const float (&h)[V]) const {
    float v[V];
    MESA_UNROLL
    for (int k = 0; k < V; ++k) v[k] = BACKWARD ? in.grad.at(k) * gelu_derivative(h[k], tanh) : gelu_value(h[k], tanh);
    store_run(out + index, v);
  }
  __device__ __forceinline__ void one(int64_t index, float h) const {
    out[index] = from_float<T>(BACKWARD ? to_float(grad[index]) * gelu_derivative(h, tanh) : gelu_value(h, tanh));
  }
};

// One range a group: a group has only 2^BITS different values of h, so a block evaluates those once and looks the rest
// up in shared memory. blockIdx.y counts groups; a group's values are `outer` rows of `inner`, groups * inner apart.
template <class T, int BITS, bool BACKWARD>
__global__ void __launch_bounds__(kCodeThreads, 4)
    gelu_table_kernel(const uint8_t* __restrict__ codes, const float* __restrict__ ranges, int64_t groups, int64_t inner,
                      Columns plan, const T* __restrict__ grad, T* __restrict__ out, bool tanh) {
  constexpr int V = kVector<T>, kFlight = kRunElements / V;
  MESA_SHARED(float, table, 1 << BITS);
  const int64_t n = plan.rows * groups * inner, jump = plan.row_lanes * groups * inner;
  for (int64_t group = blockIdx.y; group < groups; group += gridDim.y) {
    __syncthreads();
    const Step step = make_step(ranges[2 * group], ranges[2 * group + 1], kTopCode<BITS>);
    for (int i = threadIdx.x; i < 1 << BITS; i += blockDim.x) {
      const float h = decode((uint32_t)i, step);
      table[i] = BACKWARD ? gelu_derivative(h, tanh) : gelu_value(h, tanh);
    }
    __syncthreads();
    for (int64_t pass = 0; pass < plan.passes; ++pass) {
      const Place at = place_of(plan, pass);
      if (!at.valid) continue;
      for (int64_t first = (at.row * groups + group) * inner + at.column * V; first < n; first += kFlight * jump) {
        Pack<uint8_t, V * BITS / 8> in[kFlight];
        Run<T, V> g[kFlight];
        MESA_UNROLL
        for (int j = 0; j < kFlight; ++j) {
          const int64_t index = first + j * jump;
          if (index >= n) continue;
          in[j] = load_codes<BITS, V>(codes + index * BITS / 8);
          if (BACKWARD) g[j].load(grad + index);
        }
        MESA_UNROLL
        for (int j = 0; j < kFlight; ++j) {
          const int64_t index = first + j * jump;
          if (index >= n) break;
          float v[V];
          MESA_UNROLL
          for (int k = 0; k < V; ++k) {
            const float t = table[code_of<BITS, V>(in[j], k)];
            v[k] = BACKWARD ? g[j].at(k) * t : t;
          }
          store_run(out + index, v);
        }
      }
    }
  }
}

}  // namespace mesa
