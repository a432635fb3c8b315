#pragma once
#include "launch.h"
namespace mesa {
// ranges null: only the groups' ranges are taken and no code is written. observed: float32 [groups, 2], written.
int launch_quantize_groups(const void* x, View3 view, DType dtype, const float* ranges, int bits, uint64_t seed,
                           bool stochastic, uint8_t* codes, float* observed, void* stream);
// ranges: bfloat16 [blocks, 2], written.
int launch_quantize_blocks(const void* x, View3 view, DType dtype, int bits, int block_size, uint64_t seed,
                           bool stochastic, uint8_t* codes, void* ranges, void* stream);
// channels 0: no scale and shift (either may be null all the same). Everything is contiguous.
int launch_dequantize(const uint8_t* codes, Coding coding, int64_t outer, int64_t groups, int64_t inner,
                      const float* scale, const float* shift, int64_t channels, int64_t spatial, bool relu, void* y,
                      DType dtype, void* stream);
int launch_update_ranges(float* running, const float* observed, float decay, int64_t groups, void* stream);
int launch_clear_ranges(float* observed, int64_t groups, void* stream);
}  // namespace mesa
