#pragma once
#include "launch.h"
namespace mesa {
// x, grad and all else contiguous, [batch, channels, positions]; per-channel tensors float32.
// scratch: float64 [channels, splits, 3] and float32 [splits, 2, channels].
int64_t batch_norm_splits(int64_t batch, int64_t channels, int64_t positions);
int launch_batch_norm_stats(const void* x, DType dtype, int64_t batch, int64_t channels, int64_t positions,
                            double* scratch, float* mean, float* var, void* stream);
// weight, bias may be null; mask null: no ReLU. Head (block_size 0): ranges given, float32 [groups, 2], observed
// written. Block: observed is the bfloat16 [blocks, 2] written.
int launch_batch_norm_quantize(const void* x, DType dtype, int64_t batch, int64_t channels, int64_t positions,
                               const float* mean, const float* rstd, const float* weight, const float* bias,
                               const float* ranges, int64_t groups, int bits, int block_size, uint64_t seed,
                               bool stochastic, void* y, uint8_t* mask, uint8_t* codes, void* observed, void* stream);
// sums: float32 [2, channels], of g and of g * x^.
int launch_batch_norm_backward_reduce(const void* grad, const uint8_t* mask, DType dtype, int64_t batch, int64_t channels,
                                      int64_t positions, const uint8_t* codes, Coding coding, int64_t groups,
                                      float* scratch, float* sums, void* stream);
int launch_batch_norm_backward(const void* grad, const uint8_t* mask, DType dtype, int64_t batch, int64_t channels,
                               int64_t positions, const uint8_t* codes, Coding coding, int64_t groups, const float* rstd,
                               const float* weight, const float* mean_g, const float* mean_gx, void* gx, void* stream);
}  // namespace mesa
