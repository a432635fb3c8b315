#pragma once
// What the fused operators share: pieces of a tensor in linear order, the tensor they write, and a channel's parameters.
#include <vector>

#include "tensors.h"
namespace mesa {

// Values worked on at once: several buffers of this length lie in the first-level cache together.
constexpr int64_t kPiece = 1024;

// Calls f(index, values, n) for pieces of at most `piece` values with linear index begin to end - 1, in order.
template <class F>
void each_piece(const Reader& reader, int64_t begin, int64_t end, int64_t piece, const F& f) {
  int64_t at = begin;
  reader.each(begin, end, [&](const float* values, int64_t n) {
    for (int64_t i = 0; i < n; i += piece) {
      const int64_t m = std::min(piece, n - i);
      f(at, values + i, m);
      at += m;
    }
  });
}

// Values of a contiguous tensor: float32 ones are read and written in place, others through the caller's buffer.
class Input {
 public:
  Input(const Tensor& x, const char* name) : type_(dtype_of(x, name)), data_((const char*)x.const_data_ptr()) {}
  const float* at(int64_t index, int64_t n, float* buffer) const {
    if (type_ == DType::f32) return (const float*)data_ + index;
    load_floats(type_, data_ + index * element_size(type_), 1, n, buffer);
    return buffer;
  }

 private:
  DType type_;
  const char* data_;
};

class Output {
 public:
  explicit Output(Tensor& y) : type_(dtype_of(y, "output")), data_((char*)y.mutable_data_ptr()) {}
  // Where to put values from `index` on; then done() with the same pointer.
  float* at(int64_t index, float* buffer) const {
    return type_ == DType::f32 ? (float*)data_ + index : buffer;
  }
  void done(int64_t index, const float* values, int64_t n) const {
    if (type_ != DType::f32) store_floats(type_, values, n, data_ + index * element_size(type_));
  }
  // After done(): the values as they were rounded.
  void reload(int64_t index, float* values, int64_t n) const {
    if (type_ != DType::f32) load_floats(type_, data_ + index * element_size(type_), 1, n, values);
  }

 private:
  DType type_;
  char* data_;
};

// [C] parameters in float32; `fill` where there are none.
inline std::vector<float> channel_floats(const std::optional<Tensor>& p, int64_t channels, float fill, const char* name) {
  std::vector<float> out((size_t)channels, fill);
  if (!p) return out;
  STD_TORCH_CHECK(p->numel() == channels, name, ": expected [", channels, "], got ", p->numel(), " elements");
  const Tensor c = torch::stable::contiguous(*p);
  load_floats(dtype_of(c, name), c.const_data_ptr(), 1, channels, out.data());
  return out;
}

}  // namespace mesa
