#pragma once
// What every kernel builds on: element types, vector accesses, warp reductions, shared memory, launching.
// nvcc compiles this for the GPU; with tests/emu/emulator.h included first (it defines MESA_EMU) g++ compiles it for
// tests on the CPU. Shared memory is declared by the macros below so that the emulator can watch it.
#if !defined(MESA_EMU)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif
#include <stdint.h>
#include <string.h>

#include "../common/host_device.h"
#include "launch.h"

#if defined(MESA_EMU)
#define MESA_SHARED(T, name, n) static ::emu::SharedArray<T, n> name(#name)
#define MESA_DYNAMIC_SHARED(T, name) const ::emu::SharedView<T> name = ::emu::dynamic_shared<T>(#name)
#define MESA_LAUNCH(kernel, grid, threads, shared, stream, ...) \
  ::emu::launch(#kernel, (grid), (threads), (shared), (stream), [&] { kernel(__VA_ARGS__); })
#define MESA_UNROLL
#else
#define MESA_SHARED(T, name, n) __shared__ __align__(16) T name[n]
#define MESA_DYNAMIC_SHARED(T, name)                                     \
  extern __shared__ __align__(16) unsigned char mesa_dynamic_shared[];   \
  T* const name = reinterpret_cast<T*>(mesa_dynamic_shared)
#define MESA_LAUNCH(kernel, grid, threads, shared, stream, ...) \
  kernel<<<(grid), (threads), (shared), (cudaStream_t)(stream)>>>(__VA_ARGS__)
#define MESA_UNROLL _Pragma("unroll")
#endif

// Runs the statements with `scalar_t` standing for the element type.
#define MESA_DISPATCH(dtype, ...)                 \
  switch (dtype) {                                \
    case ::mesa::DType::f32: {                    \
      using scalar_t = float;                     \
      __VA_ARGS__;                                \
      break;                                      \
    }                                             \
    case ::mesa::DType::f16: {                    \
      using scalar_t = __half;                    \
      __VA_ARGS__;                                \
      break;                                      \
    }                                             \
    case ::mesa::DType::bf16: {                   \
      using scalar_t = __nv_bfloat16;             \
      __VA_ARGS__;                                \
      break;                                      \
    }                                             \
  }

namespace mesa {

constexpr unsigned kFullWarp = 0xffffffffu;

// ---- element types -------------------------------------------------------------------------------------------------
__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(__half v) { return __half2float(v); }
__device__ __forceinline__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
template <class T>
__device__ __forceinline__ T from_float(float v);
template <>
__device__ __forceinline__ float from_float<float>(float v) { return v; }
template <>
__device__ __forceinline__ __half from_float<__half>(float v) { return __float2half_rn(v); }
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float v) { return __float2bfloat16_rn(v); }

// ---- vector accesses -----------------------------------------------------------------------------------------------
template <int BYTES>
struct Raw;
template <> struct Raw<1> { using type = uint8_t; };
template <> struct Raw<2> { using type = uint16_t; };
template <> struct Raw<4> { using type = uint32_t; };
template <> struct Raw<8> { using type = uint2; };
template <> struct Raw<16> { using type = uint4; };

// N elements moved by one instruction.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};
template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_pack(const T* p) {
  using R = typename Raw<sizeof(T) * N>::type;
#if defined(MESA_EMU)
  emu::check_aligned(p, sizeof(R));
#endif
  const R r = *reinterpret_cast<const R*>(p);
  Pack<T, N> out;
  memcpy(&out, &r, sizeof(R));
  return out;
}
template <int N, class T>
__device__ __forceinline__ void store_pack(T* p, const Pack<T, N>& v) {
  using R = typename Raw<sizeof(T) * N>::type;
#if defined(MESA_EMU)
  emu::check_aligned(p, sizeof(R));
#endif
  R r;
  memcpy(&r, &v, sizeof(R));
  *reinterpret_cast<R*>(p) = r;
}
// Elements of T in one 16-byte access.
template <class T>
constexpr int kVector = 16 / (int)sizeof(T);

inline bool aligned16(const void* p) { return (uintptr_t)p % 16 == 0; }

// Four neighbouring floats of shared memory, at a multiple of four.
#if defined(MESA_EMU)
template <class S>
float4 load4(const S& s, int i) {
  emu::check_aligned(s.values + i, 16);
  return make_float4(s[i], s[i + 1], s[i + 2], s[i + 3]);
}
template <class S>
void store4(const S& s, int i, float4 v) {
  emu::check_aligned(s.values + i, 16);
  s[i] = v.x, s[i + 1] = v.y, s[i + 2] = v.z, s[i + 3] = v.w;
}
#else
__device__ __forceinline__ float4 load4(const float* s, int i) { return *reinterpret_cast<const float4*>(s + i); }
__device__ __forceinline__ void store4(float* s, int i, float4 v) { *reinterpret_cast<float4*>(s + i) = v; }
#endif

// ---- warps ---------------------------------------------------------------------------------------------------------
__device__ __forceinline__ int lane_id() { return (int)(threadIdx.x & 31); }
// Over `width` neighbouring lanes (a power of two); every lane gets the result. All lanes of the warp take part.
__device__ __forceinline__ float lanes_min(float v, int width = 32) {
  for (int o = width >> 1; o > 0; o >>= 1) v = fminf(v, __shfl_xor_sync(kFullWarp, v, o));
  return v;
}
__device__ __forceinline__ float lanes_max(float v, int width = 32) {
  for (int o = width >> 1; o > 0; o >>= 1) v = fmaxf(v, __shfl_xor_sync(kFullWarp, v, o));
  return v;
}
__device__ __forceinline__ float lanes_sum(float v, int width = 32) {
  for (int o = width >> 1; o > 0; o >>= 1) v += __shfl_xor_sync(kFullWarp, v, o);
  return v;
}

// ---- indices -------------------------------------------------------------------------------------------------------
// 64-bit division costs several times the 32-bit one, so that is taken wherever both numbers allow.
struct Quotient {
  int64_t quotient, remainder;
};
MESA_HD Quotient divide(int64_t a, int64_t b) {
  Quotient r;
  if ((((uint64_t)a | (uint64_t)b) >> 32) == 0) {
    const uint32_t q = (uint32_t)a / (uint32_t)b;
    r.quotient = q;
    r.remainder = (uint32_t)a - q * (uint32_t)b;
  } else {
    r.quotient = a / b;
    r.remainder = a - r.quotient * b;
  }
  return r;
}
// Where the element with this linear index lies, in elements from the first.
MESA_HD int64_t offset_of(const View3& v, int64_t index) {
  const Quotient row = divide(index, v.inner), group = divide(row.quotient, v.groups);
  return group.quotient * v.outer_stride + group.remainder * v.group_stride + row.remainder * v.inner_stride;
}
__device__ __forceinline__ int64_t thread_index() { return (int64_t)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ int64_t thread_count() { return (int64_t)gridDim.x * blockDim.x; }

// ---- launching -----------------------------------------------------------------------------------------------------
#if defined(MESA_EMU)
inline int64_t grid_limit() { return emu::max_grid(); }
#else
inline int64_t grid_limit() { return 65535; }
#endif
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
// Blocks for n items at `per_block` items a block; kernels stride over what is left beyond the limit.
inline int grid_for(int64_t n, int64_t per_block) {
  const int64_t blocks = ceil_div(n, per_block), limit = grid_limit();
  return (int)(blocks < 1 ? 1 : blocks > limit ? limit : blocks);
}

}  // namespace mesa
