// Kernels with one fault each, and right ones beside them, for test_emulator.py. run(name) returns the emulator's
// report, or "" where it found nothing.
#include "emulator.h"

#include "../../csrc/cuda/device.cuh"

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
