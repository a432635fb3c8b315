#pragma once
// Qualifier of the arithmetic that the CPU kernels, the CUDA kernels and the emulator share.
#if defined(__CUDACC__)
#define MESA_HD __host__ __device__ __forceinline__
#else
#define MESA_HD inline __attribute__((always_inline))
#endif
