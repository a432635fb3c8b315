#include "upsample_cross_entropy.cuh"

namespace mesa {
namespace {

// A block's threads: a segment of an output row.
int segment_of(const CrossEntropy& p) {
  const int64_t threads = ceil_div(p.columns.out, 32) * 32;
  return (int)(threads < 32 ? 32 : threads < kPixelThreads ? threads : kPixelThreads);
}

PixelStage stage_of(const CrossEntropy& p) {
  const int64_t segment = segment_of(p);
  int64_t most = 1;
  for (int64_t first = 0; first < p.columns.out; first += segment) {
    const int64_t last = first + segment < p.columns.out ? first + segment - 1 : p.columns.out - 1;
    const int64_t columns = source_tap(p.columns, last).first + 2 - source_tap(p.columns, first).first;
    most = columns > most ? columns : most;
  }
  const int64_t room = kStage / most / kClassRun * kClassRun;
  if (room == 0) return {0, 0};
  const int64_t even = ceil_div(p.classes, ceil_div(p.classes, room));  // chunks of one size
  return {(int)most, (int)(ceil_div(even, kClassRun) * kClassRun)};
}

}  // namespace

int64_t cross_entropy_blocks(const CrossEntropy& p) {
  // The sums' order must not depend on the device.
  const int64_t units = p.rows.out * ceil_div(p.columns.out, segment_of(p)), limit = grid_limit() < 1024 ? grid_limit() : 1024;
  return units < 1 ? 1 : units < limit ? units : limit;
}

int launch_upsample_cross_entropy(const CrossEntropy& p, void* stream) {
  const int64_t blocks = cross_entropy_blocks(p);
  const PixelStage stage = stage_of(p);
  const int64_t shared = (int64_t)sizeof(float) * stage.chunk * stage.columns;
  GradientTiles tiles{(int)ceil_div(p.classes, kGradWarps * kGradClasses), (int)ceil_div(p.columns.in, 32),
                      (int)ceil_div(p.rows.in, kGradRows), 0};
  tiles.count = p.batch * tiles.classes * tiles.columns * tiles.rows;
  const int images = grid_for(p.batch, 1);
  const dim3 pixel_grid((unsigned)blocks, images), pixel_threads(segment_of(p)), threads(kPixelThreads);
  MESA_DISPATCH(p.dtype, {
    if (stage.chunk)
      MESA_LAUNCH((cross_entropy_pixels_kernel<scalar_t, true>), pixel_grid, pixel_threads, shared, stream, p, stage, blocks);
    else
      MESA_LAUNCH((cross_entropy_pixels_kernel<scalar_t, false>), pixel_grid, pixel_threads, 0, stream, p, stage, blocks);
    MESA_LAUNCH(cross_entropy_sums_kernel, dim3(images), threads, 0, stream, p, blocks);
    if (p.grad)
      MESA_LAUNCH((cross_entropy_gradient_kernel<scalar_t>), dim3(grid_for(tiles.count, 1)), dim3(kGradWarps * 32), 0,
                  stream, p, tiles);
  })
  return (int)cudaGetLastError();
}

}  // namespace mesa
