#pragma once
#include "launch.h"
namespace mesa {
// y contiguous. Head (block_size 0): ranges given, float32 [groups, 2], observed written. Block: observed is the
// bfloat16 [blocks, 2] written.
int launch_gelu_quantize(const void* x, View3 view, DType dtype, bool tanh, const float* ranges, int bits,
                         int block_size, uint64_t seed, bool stochastic, void* y, uint8_t* codes, void* observed,
                         void* stream);
// grad null: out = GELU(h); else out = grad * GELU'(h). Contiguous.
int launch_gelu_from_codes(const uint8_t* codes, Coding coding, int64_t outer, int64_t groups, int64_t inner, bool tanh,
                           const void* grad, void* out, DType dtype, void* stream);
}  // namespace mesa
