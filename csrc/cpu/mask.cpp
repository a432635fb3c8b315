// Operators of the mask family on the CPU. Docstrings: mesa_seg/ops/mask.py.
#include <string.h>

#include <tuple>

#include "tensors.h"
namespace mesa {
namespace {

int64_t mask_bytes(int64_t n) { return (n + 7) / 8; }

void check_bits(const Tensor& bits, int64_t numel) {
  STD_TORCH_CHECK(numel >= 0 && bits.scalar_type() == ScalarType::Byte && bits.numel() == mask_bytes(numel),
                  "bits: expected uint8 [", mask_bytes(numel), "], got ", bits.numel(), " elements");
}

// A tensor of any shape and strides is made contiguous first: the result is contiguous anyway.
Tensor pack_mask(const Tensor& mask_) {
  STD_TORCH_CHECK(mask_.scalar_type() == ScalarType::Bool, "mask: expected bool");
  const Tensor mask = torch::stable::contiguous(mask_);
  Tensor bits = new_large(mask, {mask_bytes(mask.numel())}, ScalarType::Byte);
  const uint8_t* from = (const uint8_t*)mask.const_data_ptr();
  uint8_t* to = (uint8_t*)bits.mutable_data_ptr();
  parallel_values(mask.numel(), 8, [&](int64_t begin, int64_t end) {
    pack_codes(from + begin, end - begin, 1, to + begin / 8);
  });
  return bits;
}

Tensor unpack_mask(const Tensor& bits_, int64_t numel) {
  check_bits(bits_, numel);
  const Tensor bits = torch::stable::contiguous(bits_);
  Tensor mask = new_large(bits, {numel}, ScalarType::Bool);
  const uint8_t* from = (const uint8_t*)bits.const_data_ptr();
  uint8_t* to = (uint8_t*)mask.mutable_data_ptr();
  parallel_values(numel, 8, [&](int64_t begin, int64_t end) {
    unpack_codes(from + begin / 8, end - begin, 1, to + begin);
  });
  return mask;
}

// Goes through x chunk by chunk: f(values, first, n) changes the float32 values in place.
template <class F>
Tensor map_values(const Tensor& x, const char* name, const F& f) {
  const DType type = dtype_of(x, name);
  Tensor y = new_large(x, x.sizes(), x.scalar_type());
  const char* from = (const char*)x.const_data_ptr();
  char* to = (char*)y.mutable_data_ptr();
  parallel_values(x.numel(), 64, [&](int64_t begin, int64_t end) {
    alignas(64) float buffer[kChunk];
    for (int64_t i = begin; i < end; i += kChunk) {
      const int64_t n = std::min(kChunk, end - i), at = i * element_size(type);
      float* values = type == DType::f32 ? (float*)(to + at) : buffer;
      load_floats(type, from + at, 1, n, values);
      f(values, i, n);
      if (type != DType::f32) store_floats(type, values, n, to + at);
    }
  });
  return y;
}

std::tuple<Tensor, Tensor> relu_mask(const Tensor& x_) {
  const Tensor x = torch::stable::contiguous(x_);
  Tensor bits = new_large(x, {mask_bytes(x.numel())}, ScalarType::Byte);
  uint8_t* to = (uint8_t*)bits.mutable_data_ptr();
  Tensor y = map_values(x, "x", [&](float* values, int64_t first, int64_t n) {
    uint8_t positive[kChunk];
    positive_chunk(values, n, positive);
    pack_codes(positive, n, 1, to + first / 8);
    relu_chunk(values, n);
  });
  return {y, bits};
}

Tensor mask_multiply(const Tensor& grad_, const Tensor& bits_, double scale) {
  check_bits(bits_, grad_.numel());
  const Tensor grad = torch::stable::contiguous(grad_), bits = torch::stable::contiguous(bits_);
  const uint8_t* from = (const uint8_t*)bits.const_data_ptr();
  return map_values(grad, "grad", [&](float* values, int64_t first, int64_t n) {
    uint8_t mask[kChunk];
    unpack_codes(from + first / 8, n, 1, mask);
    mask_chunk(values, n, mask, (float)scale);
  });
}

}  // namespace
}  // namespace mesa

STABLE_TORCH_LIBRARY_IMPL(mesa_seg, CPU, m) {
  m.impl("pack_mask", TORCH_BOX(&mesa::pack_mask));
  m.impl("unpack_mask", TORCH_BOX(&mesa::unpack_mask));
  m.impl("relu_mask", TORCH_BOX(&mesa::relu_mask));
  m.impl("mask_multiply", TORCH_BOX(&mesa::mask_multiply));
}
