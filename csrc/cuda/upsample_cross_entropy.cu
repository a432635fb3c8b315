#include "upsample_cross_entropy.cuh"

namespace mesa {

int64_t cross_entropy_blocks(const CrossEntropy& p) {
  // A block a few thousand pixels at most: the sums' order must not depend on the device.
  const int64_t pixels = p.rows.out * p.columns.out, limit = grid_limit() < 1024 ? grid_limit() : 1024;
  const int64_t blocks = ceil_div(pixels, kPixelThreads);
  return blocks < 1 ? 1 : blocks < limit ? blocks : limit;
}

int launch_upsample_cross_entropy(const CrossEntropy& p, void* stream) {
  const int64_t blocks = cross_entropy_blocks(p);
  const int class_groups = (int)ceil_div(p.classes, kGradWarps);
  const dim3 pixel_grid((unsigned)blocks, p.batch), threads(kPixelThreads);
  const dim3 gradient_grid((unsigned)ceil_div(p.columns.in, 32), (unsigned)ceil_div(p.rows.in, kGradRows),
                           (unsigned)(p.batch * class_groups));
  MESA_DISPATCH(p.dtype, {
    MESA_LAUNCH((cross_entropy_pixels_kernel<scalar_t>), pixel_grid, threads, 0, stream, p, blocks);
    MESA_LAUNCH(cross_entropy_sums_kernel, dim3(p.batch), threads, 0, stream, p, blocks);
    if (p.grad)
      MESA_LAUNCH((cross_entropy_gradient_kernel<scalar_t>), gradient_grid, dim3(kGradWarps * 32), 0, stream, p,
                  class_groups);
  })
  return (int)cudaGetLastError();
}

}  // namespace mesa
