#pragma once
#include "launch.h"
namespace mesa {
// One bit a value, 8 a byte, in logical contiguous order. Everything is contiguous here.
int launch_pack_mask(const void* mask, uint8_t* bits, int64_t n, void* stream);
int launch_unpack_mask(const uint8_t* bits, void* mask, int64_t n, void* stream);
int launch_relu_mask(const void* x, void* y, uint8_t* bits, int64_t n, DType dtype, void* stream);
int launch_mask_multiply(const void* grad, const uint8_t* bits, void* out, float scale, int64_t n, DType dtype,
                         void* stream);
}  // namespace mesa
