#pragma once
#include "launch.h"
namespace mesa {
// x [rows, C] with strides; everything else contiguous. weight and bias float32 or null. mean is scratch, float32 [rows].
// Head (block_size 0): ranges given, float32 [groups, 2], observed written. Block: observed is bfloat16 [blocks, 2].
int launch_layer_norm_quantize(const void* x, int64_t rows, int64_t channels, int64_t row_stride,
                               int64_t channel_stride, DType dtype, const float* weight, const float* bias, float eps,
                               const float* ranges, int64_t groups, int bits, int block_size, uint64_t seed,
                               bool stochastic, void* y, float* mean, float* rstd, uint8_t* codes, void* observed,
                               void* stream);
// Rows of the scratch `partial`, float32 [rows of it, 2, C].
int64_t layer_norm_partial_rows(int64_t rows, int64_t channels);
// grad contiguous; sums float32 [2, C]: gw then gb.
int launch_layer_norm_backward(const void* grad, int64_t rows, int64_t channels, DType dtype, const uint8_t* codes,
                               Coding coding, int64_t groups, const float* rstd, const float* weight, void* gx,
                               float* partial, float* sums, void* stream);
}  // namespace mesa
