#include "quantize.cuh"

#include "quantize.h"

namespace mesa {

namespace {

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

template <class T>
struct Values {  // the value itself
  static constexpr int kBlocksPerSm = 4, kBlocksPerSmInBlocks = 3;
  T* y;
  struct Column {};
  struct Input {};
  __device__ __forceinline__ Column column(int64_t) const { return {}; }
  __device__ __forceinline__ void load(Input&, int64_t) const {}
  template <int V>
  __device__ __forceinline__ void run(Column, Input, int64_t index, const float (&v)[V]) const {
    store_run(y + index, v);
  }
  __device__ __forceinline__ void one(int64_t index, float v) const { y[index] = from_float<T>(v); }
};

template <class T>
struct Affine {  // value * scale[c] + shift[c], either may be null, then ReLU
  static constexpr int kBlocksPerSm = 3, kBlocksPerSmInBlocks = 3;
  T* y;
  const float *scale, *shift;
  int64_t channels, spatial;
  bool relu;
  struct Column {
    float scale[kVector<T>], shift[kVector<T>];
  };
  struct Input {};
  __device__ __forceinline__ int64_t channel(int64_t index) const {
    return channels ? divide(divide(index, spatial).quotient, channels).remainder : 0;
  }
  __device__ __forceinline__ Column column(int64_t index) const {
    Column c;
    MESA_UNROLL
    for (int k = 0; k < kVector<T>; ++k) {
      const int64_t at = channel(index + k);
      c.scale[k] = scale ? scale[at] : 1.0f;
      c.shift[k] = shift ? shift[at] : 0.0f;
    }
    return c;
  }
  __device__ __forceinline__ void load(Input&, int64_t) const {}
  __device__ __forceinline__ float finish(float v, float a, float b) const {
    if (scale) v = v * a;
    if (shift) v = v + b;
    return relu && v < 0.0f ? 0.0f : v;
  }
  template <int V>
  __device__ __forceinline__ void run(const Column& c, Input, int64_t index, const float (&v)[V]) const {
    float out[V];
    MESA_UNROLL
    for (int k = 0; k < V; ++k) out[k] = finish(v[k], c.scale[k], c.shift[k]);
    store_run(y + index, out);
  }
  __device__ __forceinline__ void one(int64_t index, float v) const {
    const int64_t at = channel(index);
    y[index] = from_float<T>(finish(v, scale ? scale[at] : 1.0f, shift ? shift[at] : 0.0f));
  }
};

}  // namespace

int launch_clear_ranges(float* observed, int64_t groups, void* stream) {
  MESA_LAUNCH(clear_ranges_kernel, dim3(grid_for(groups, kCodeThreads)), dim3(kCodeThreads), 0, stream, observed,
              groups);
  return (int)cudaGetLastError();
}

int launch_update_ranges(float* running, const float* observed, float decay, int64_t groups, void* stream) {
  MESA_LAUNCH(update_ranges_kernel, dim3(grid_for(groups, kCodeThreads)), dim3(kCodeThreads), 0, stream, running,
              observed, decay, groups);
  return (int)cudaGetLastError();
}

int launch_quantize_groups(const void* x, View3 view, DType dtype, const float* ranges, int bits, uint64_t seed,
                           bool stochastic, uint8_t* codes, float* observed, void* stream) {
  const Rounding rounding{seed, stochastic};
  const int error = launch_clear_ranges(observed, view.groups, stream);
  if (error || view.outer * view.groups * view.inner == 0) return error;
  MESA_DISPATCH(dtype, {
    const auto* in = static_cast<const scalar_t*>(x);
    if (ranges) {
      MESA_DISPATCH_BITS(bits, quantize_in_groups<scalar_t, kBits, kVector<scalar_t>>(
                                   in, view, ranges, rounding, codes, observed, true, Plain(), stream));
    } else {
      quantize_in_groups<scalar_t, 0, kVector<scalar_t>>(in, view, nullptr, rounding, nullptr, observed, true, Plain(),
                                                         stream);
    }
  })
  return (int)cudaGetLastError();
}

int launch_quantize_blocks(const void* x, View3 view, DType dtype, int bits, int block_size, uint64_t seed,
                           bool stochastic, uint8_t* codes, void* ranges, void* stream) {
  const Rounding rounding{seed, stochastic};
  auto* out = static_cast<uint32_t*>(ranges);
  MESA_DISPATCH(dtype, {
    const auto* in = static_cast<const scalar_t*>(x);
    MESA_DISPATCH_BITS(bits, quantize_in_blocks<scalar_t, kBits, kVector<scalar_t>>(
                                 in, view, block_size, rounding, codes, out, true, Plain(), stream));
  })
  return (int)cudaGetLastError();
}

int launch_dequantize(const uint8_t* codes, Coding coding, int64_t outer, int64_t groups, int64_t inner,
                      const float* scale, const float* shift, int64_t channels, int64_t spatial, bool relu, void* y,
                      DType dtype, void* stream) {
  MESA_DISPATCH(dtype, {
    auto* out = static_cast<scalar_t*>(y);
    constexpr int V = kVector<scalar_t>;
    const bool runs = aligned16(out);
    if (channels || relu) {
      const Affine<scalar_t> sink{out, scale, shift, channels, spatial, relu};
      MESA_DISPATCH_BITS(coding.bits, decode_into<kBits, V>(codes, coding, outer, groups, inner, channels * spatial,
                                                            runs, sink, stream));
    } else {
      MESA_DISPATCH_BITS(coding.bits, decode_into<kBits, V>(codes, coding, outer, groups, inner, 0, runs,
                                                            Values<scalar_t>{out}, stream));
    }
  })
  return (int)cudaGetLastError();
}

}  // namespace mesa
