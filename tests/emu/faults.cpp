// Kernels with one fault each, and right ones beside them, for test_emulator.py. run(name) returns the emulator's
// report, or "" where it found nothing.
#include "emulator.h"

#include "../../csrc/cuda/mma.cuh"

namespace {

int out[256];

__global__ void exchange(int* o) {
  MESA_SHARED(int, s, 64);
  s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  o[threadIdx.x] = s[63 - threadIdx.x];
}
__global__ void exchange_without_barrier(int* o) {
  MESA_SHARED(int, s, 64);
  s[threadIdx.x] = threadIdx.x;
  o[threadIdx.x] = s[63 - threadIdx.x];
}
__global__ void exchange_in_warp(int* o) {
  MESA_SHARED(int, s, 64);
  s[threadIdx.x] = threadIdx.x;
  __syncwarp();
  o[threadIdx.x] = s[threadIdx.x ^ 31];
}
__global__ void overwrite_while_read(int* o) {
  MESA_SHARED(int, s, 64);
  for (int round = 0; round < 2; ++round) {
    s[threadIdx.x] = threadIdx.x + round;
    __syncthreads();
    o[threadIdx.x] = s[63 - threadIdx.x];  // a second barrier is missing
  }
}
__global__ void two_writers(int* o) {
  MESA_SHARED(int, s, 1);
  s[0] = threadIdx.x;
  __syncthreads();
  o[threadIdx.x] = s[0];
}
__global__ void atomic_writers(int* o) {
  MESA_SHARED(int, s, 1);
  if (threadIdx.x == 0) s[0] = 0;
  __syncthreads();
  atomicAdd(&s[0], 1);
  __syncthreads();
  o[threadIdx.x] = s[0];
}
__global__ void atomic_and_plain(int* o) {
  MESA_SHARED(int, s, 1);
  if (threadIdx.x == 0) s[0] = 0;
  __syncthreads();
  atomicAdd(&s[0], 1);
  o[threadIdx.x] = s[0];
}
__global__ void never_written(int* o) {
  MESA_SHARED(int, s, 64);
  if (threadIdx.x < 32) s[threadIdx.x] = 1;
  __syncthreads();
  o[threadIdx.x] = s[threadIdx.x];
}
__global__ void outside(int* o) {
  MESA_SHARED(int, s, 63);
  s[threadIdx.x] = 1;
  __syncthreads();
  o[threadIdx.x] = s[0];
}
__global__ void outside_dynamic(int* o) {
  MESA_DYNAMIC_SHARED(int, s);
  s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  o[threadIdx.x] = s[63 - threadIdx.x];
}
__global__ void early_return(int* o) {
  if (threadIdx.x > 40) return;
  __syncthreads();
  o[0] = 1;
}
__global__ void two_barriers(int* o) {
  if (threadIdx.x & 32)
    __syncthreads();
  else
    o[0] = 1, __syncthreads();
}
__global__ void missing_lanes(int* o) {
  if (threadIdx.x < 16) o[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1, 1);
}
__global__ void not_in_mask(int* o) { o[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, 1, 1); }
__global__ void source_not_in_mask(int* o) {
  if (threadIdx.x < 16) o[threadIdx.x] = __shfl_sync(0x0000ffffu, 1, 20);
}
__global__ void different_masks(int* o) {
  o[threadIdx.x] = __shfl_xor_sync(threadIdx.x < 16 ? 0xffffffffu : 0xffff0000u, 1, 1);
}
__global__ void half_warp(int* o) {
  if (threadIdx.x < 16) o[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, (int)threadIdx.x, 1);
}
__global__ void two_half_warps(int* o) {  // each with its own mask, at once
  int v = threadIdx.x;
  for (int d = 1; d < 16; d *= 2) v += __shfl_xor_sync(threadIdx.x < 16 ? 0x0000ffffu : 0xffff0000u, v, d);
  o[threadIdx.x] = v;
}
__global__ void unaligned(int* o) {
  mesa::store_pack<4>(o + 1, mesa::load_pack<4>(o));
}
__global__ void beyond_the_end(int* o, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) o[i] = i;
}

__global__ void half_warp_product(int* o) {
  float sum[4] = {};
  const uint32_t a[4] = {};
  if (threadIdx.x < 16) mesa::mma<__half>(sum, a, 0, 0);
  o[threadIdx.x] = (int)sum[0];
}
__global__ void product_and_vote(int* o) {
  float sum[4] = {};
  const uint32_t a[4] = {};
  if (threadIdx.x < 16)
    mesa::mma<__half>(sum, a, 0, 0);
  else
    o[threadIdx.x] = __any_sync(0xffffffffu, 1);
}
__global__ void unaligned_matrix(int* o) {
  MESA_SHARED(__half, s, 520);
  for (int i = threadIdx.x; i < 520; i += 32) s[i] = __half{0};
  __syncthreads();
  uint32_t r[4];
  mesa::load_matrices<false>(r, s + (16 * threadIdx.x + 1));
  o[threadIdx.x] = r[0];
}
alignas(16) __half words[256];
__global__ void copy_and_wait(int* o) {
  MESA_SHARED(__half, s, 256);
  mesa::copy_async(s + 8 * threadIdx.x, words + 8 * threadIdx.x);
  mesa::wait_for_copies();
  __syncthreads();
  o[threadIdx.x] = ((__half)s[255 - 8 * threadIdx.x]).raw;
}
__global__ void copy_read_early(int* o) {
  MESA_SHARED(__half, s, 256);
  mesa::copy_async(s + 8 * threadIdx.x, words + 8 * threadIdx.x);
  __syncthreads();
  o[threadIdx.x] = ((__half)s[255 - 8 * threadIdx.x]).raw;
  mesa::wait_for_copies();
}
__global__ void copy_not_waited_for(int* o) {
  MESA_SHARED(__half, s, 256);
  mesa::copy_async(s + 8 * threadIdx.x, words + 8 * threadIdx.x);
}

// d = a b + c for a [16, 16], b [16, 8], c and d [16, 8]. The elements of the fragments are written out as in the PTX ISA,
// "Matrix Fragments for mma.m16n8k16 with floating point type"; load: they come from load_matrices instead, out of shared
// memory that holds a and b as they are or transposed.
template <class T>
__global__ void product(const float* a, const float* b, const float* c, float* d, int load) {
  MESA_SHARED(T, as, 256);
  MESA_SHARED(T, bs, 256);
  const int lane = threadIdx.x, group = lane >> 2, in_group = lane % 4;
  T af[8], bf[4];
  for (int i = 0; i < 8; ++i) {
    const int row = (i < 2 || (i >= 4 && i < 6)) ? group : group + 8;
    const int column = in_group * 2 + (i & 1) + (i < 4 ? 0 : 8);
    af[i] = mesa::from_float<T>(a[row * 16 + column]);
  }
  for (int i = 0; i < 4; ++i) {
    const int row = in_group * 2 + (i & 1) + (i < 2 ? 0 : 8);
    bf[i] = mesa::from_float<T>(b[row * 8 + group]);
  }
  uint32_t ar[4], br[4];
  memcpy(ar, af, sizeof af);
  memcpy(br, bf, sizeof bf);
  if (load) {
    const bool transposed = load == 2;
    for (int i = lane; i < 256; i += 32) {
      const int row = i / 16, column = i % 16;
      as[transposed ? column * 16 + row : i] = mesa::from_float<T>(a[i]);
      bs[i] = mesa::from_float<T>(column < 8 ? b[row * 8 + column] : 0.0f);  // [k, n]
    }
    __syncthreads();
    if (transposed) {
      mesa::load_matrices<true>(ar, as + ((lane / 16 * 8 + lane % 8) * 16 + lane / 8 % 2 * 8));
      mesa::load_matrices<true>(br, bs + (lane % 16 * 16 + lane / 16 * 8));
    } else {
      mesa::load_matrices<false>(ar, as + (lane % 16 * 16 + lane / 16 * 8));
      __syncthreads();
      for (int i = lane; i < 128; i += 32) bs[i % 8 * 16 + i / 8] = mesa::from_float<T>(b[i]);  // [n, k]
      __syncthreads();
      mesa::load_matrices<false>(br, bs + (lane % 8 * 16 + lane / 8 % 2 * 8));
    }
  }
  float sum[4];
  for (int i = 0; i < 4; ++i) sum[i] = c[(i < 2 ? group : group + 8) * 8 + in_group * 2 + (i & 1)];
  mesa::mma<T>(sum, ar, br[0], br[1]);
  for (int i = 0; i < 4; ++i) d[(i < 2 ? group : group + 8) * 8 + in_group * 2 + (i & 1)] = sum[i];
}

}  // namespace

extern "C" const char* run(const char* name) {
  const std::string n(name);
#define CASE(kernel, grid, threads, shared) \
  if (n == #kernel) MESA_LAUNCH(kernel, dim3(grid), dim3(threads), shared, mesa::emulated_stream(), out)
  CASE(exchange, 2, 64, 0);
  CASE(exchange_without_barrier, 1, 64, 0);
  CASE(exchange_in_warp, 1, 64, 0);
  CASE(overwrite_while_read, 1, 64, 0);
  CASE(two_writers, 1, 64, 0);
  CASE(atomic_writers, 1, 64, 0);
  CASE(atomic_and_plain, 1, 64, 0);
  CASE(never_written, 1, 64, 0);
  CASE(outside, 1, 64, 0);
  CASE(outside_dynamic, 1, 64, 63 * 4);
  CASE(early_return, 1, 64, 0);
  CASE(two_barriers, 1, 64, 0);
  CASE(missing_lanes, 1, 32, 0);
  CASE(not_in_mask, 1, 32, 0);
  CASE(source_not_in_mask, 1, 32, 0);
  CASE(different_masks, 1, 32, 0);
  CASE(half_warp, 1, 32, 0);
  CASE(two_half_warps, 1, 32, 0);
  CASE(unaligned, 1, 1, 0);
  CASE(half_warp_product, 1, 32, 0);
  CASE(product_and_vote, 1, 32, 0);
  CASE(unaligned_matrix, 1, 32, 0);
  CASE(copy_and_wait, 1, 32, 0);
  CASE(copy_read_early, 1, 32, 0);
  CASE(copy_not_waited_for, 1, 32, 0);
  if (n == "grid_too_large") MESA_LAUNCH(exchange, dim3(1, 65536), dim3(64), 0, mesa::emulated_stream(), out);
  if (n == "block_too_large") MESA_LAUNCH(exchange, dim3(1), dim3(1025), 0, mesa::emulated_stream(), out);
  if (n == "other_stream") MESA_LAUNCH(exchange, dim3(1), dim3(64), 0, nullptr, out);
  if (n == "beyond_the_end") {
    int* heap = new int[64];
    MESA_LAUNCH(beyond_the_end, dim3(1), dim3(128), 0, mesa::emulated_stream(), heap, 64);
    delete[] heap;
  }
  return cudaGetLastError() ? emu::last_error().c_str() : "";
}

extern "C" const char* multiply(const float* a, const float* b, const float* c, float* d, int bfloat, int load) {
  if (bfloat)
    MESA_LAUNCH(product<__nv_bfloat16>, dim3(1), dim3(32), 0, mesa::emulated_stream(), a, b, c, d, load);
  else
    MESA_LAUNCH(product<__half>, dim3(1), dim3(32), 0, mesa::emulated_stream(), a, b, c, d, load);
  return cudaGetLastError() ? emu::last_error().c_str() : "";
}

// Index arithmetic of kernels with more elements than 32 bits count: nothing is allocated.
extern "C" int64_t offset(int64_t groups, int64_t inner, int64_t outer_stride, int64_t group_stride,
                          int64_t inner_stride, int64_t index) {
  return mesa::offset_of(mesa::View3{0, groups, inner, outer_stride, group_stride, inner_stride}, index);
}
// The 16-bit types of the emulator, against torch's.
extern "C" void round_trip(const float* x, int64_t n, float* half, float* bfloat) {
  for (int64_t i = 0; i < n; ++i) {
    half[i] = __half2float(__float2half_rn(x[i]));
    bfloat[i] = __bfloat162float(__float2bfloat16_rn(x[i]));
  }
}

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) printf("%s: %s\n", argv[i], run(argv[i]));
}
