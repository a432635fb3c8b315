#include "mask.cuh"
#include "mask.h"

namespace mesa {

int launch_pack_mask(const void* mask, uint8_t* bits, int64_t n, void* stream) {
  const auto* in = static_cast<const uint8_t*>(mask);
  const dim3 grid(grid_for(n, 16 * kMaskThreads)), threads(kMaskThreads);
  if (aligned16(in) && (uintptr_t)bits % 2 == 0) {
    MESA_LAUNCH((pack_mask_kernel<true>), grid, threads, 0, stream, in, bits, n);
  } else {
    MESA_LAUNCH((pack_mask_kernel<false>), grid, threads, 0, stream, in, bits, n);
  }
  return (int)cudaGetLastError();
}

int launch_unpack_mask(const uint8_t* bits, void* mask, int64_t n, void* stream) {
  auto* out = static_cast<uint8_t*>(mask);
  const dim3 grid(grid_for(n, 16 * kMaskThreads)), threads(kMaskThreads);
  if (aligned16(out) && (uintptr_t)bits % 2 == 0) {
    MESA_LAUNCH((unpack_mask_kernel<true>), grid, threads, 0, stream, bits, out, n);
  } else {
    MESA_LAUNCH((unpack_mask_kernel<false>), grid, threads, 0, stream, bits, out, n);
  }
  return (int)cudaGetLastError();
}

int launch_relu_mask(const void* x, void* y, uint8_t* bits, int64_t n, DType dtype, void* stream) {
  const bool vector = aligned16(x) && aligned16(y);
  MESA_DISPATCH(dtype, {
    const auto* in = static_cast<const scalar_t*>(x);
    auto* out = static_cast<scalar_t*>(y);
    const dim3 grid(grid_for(n, (int64_t)kVector<scalar_t> * kMaskThreads)), threads(kMaskThreads);
    if (vector) {
      MESA_LAUNCH((relu_mask_kernel<scalar_t, true>), grid, threads, 0, stream, in, out, bits, n);
    } else {
      MESA_LAUNCH((relu_mask_kernel<scalar_t, false>), grid, threads, 0, stream, in, out, bits, n);
    }
  })
  return (int)cudaGetLastError();
}

int launch_mask_multiply(const void* grad, const uint8_t* bits, void* out, float scale, int64_t n, DType dtype,
                         void* stream) {
  const bool vector = aligned16(grad) && aligned16(out);
  MESA_DISPATCH(dtype, {
    const auto* g = static_cast<const scalar_t*>(grad);
    auto* o = static_cast<scalar_t*>(out);
    const dim3 grid(grid_for(n, (int64_t)kVector<scalar_t> * kMaskThreads)), threads(kMaskThreads);
    if (vector) {
      MESA_LAUNCH((mask_multiply_kernel<scalar_t, true>), grid, threads, 0, stream, g, bits, o, scale, n);
    } else {
      MESA_LAUNCH((mask_multiply_kernel<scalar_t, false>), grid, threads, 0, stream, g, bits, o, scale, n);
    }
  })
  return (int)cudaGetLastError();
}

}  // namespace mesa
