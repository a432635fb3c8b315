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

// Lets a kernel have all the shared memory that its static arrays leave: always the same, so that launches of several host
// threads do not take it from each other.
template <class K>
int allow_shared(K kernel) {
#if defined(MESA_EMU)
  (void)kernel;
  return 0;
#else
  cudaFuncAttributes found;
  int error = (int)cudaFuncGetAttributes(&found, kernel);
  if (!error)
    error = (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)(shared_limit() - (int64_t)found.sharedSizeBytes));
  if (error) (void)cudaGetLastError();  // it is reported here, not by the next operator
  return error;
#endif
}

}  // namespace mesa
