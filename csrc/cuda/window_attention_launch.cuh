#pragma once
// What the launchers of both kinds of attention kernels ask of the device.
#include "device.cuh"

namespace mesa {

// Shared memory that a block may have, static arrays included.
inline int64_t shared_limit() {
#if defined(MESA_EMU)
  return emu::environment("MESA_EMU_MAX_SHARED", 227 * 1024);
#else
  int device = 0, most = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  if (cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess) return 0;
  return most;
#endif
}

// Shared memory of all blocks of a multiprocessor; of each block the device takes a kilobyte for itself.
constexpr int64_t kReservedShared = 1024;
inline int64_t shared_of_multiprocessor() {
#if defined(MESA_EMU)
  return emu::environment("MESA_EMU_ALL_SHARED", 228 * 1024);
#else
  int device = 0, all = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  if (cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device) != cudaSuccess) return 0;
  return all;
#endif
}

template <class K>
int allow_shared(K kernel, int64_t bytes) {
#if defined(MESA_EMU)
  (void)kernel, (void)bytes;
  return 0;
#else
  return (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
#endif
}

}  // namespace mesa
