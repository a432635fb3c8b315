#pragma once
// Between torch's stable tensors and the chunk loops: element types, strided reading, and the split over threads.
#if defined(__linux__)
#include <sys/mman.h>
#endif
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <optional>

#include "chunk.h"
#include "coding.h"
namespace mesa {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

inline DType dtype_of(ScalarType t, const char* name) {
  STD_TORCH_CHECK(t == ScalarType::Float || t == ScalarType::Half || t == ScalarType::BFloat16, name,
                  ": expected float32, float16 or bfloat16");
  return t == ScalarType::Float ? DType::f32 : t == ScalarType::Half ? DType::f16 : DType::bf16;
}
inline DType dtype_of(const Tensor& x, const char* name) { return dtype_of(x.scalar_type(), name); }

// What memory safety asks for; mesa_seg/ops states the whole contract, with the words for the user.
inline void check_coding(int64_t bits, int64_t block_size) {
  STD_TORCH_CHECK(bits == 8 || bits == 4 || bits == 2, "bits: expected 8, 4 or 2, got ", bits);
  STD_TORCH_CHECK(block_size == 0 || (block_size >= 16 && block_size <= 1024 && block_size % 8 == 0),
                  "block_size: expected 0 or a multiple of 8 from 16 to 1024, got ", block_size);
}
// The (lo, hi) of each group as given: float32 [groups, 2], contiguous. Without blocks only.
inline Tensor given_ranges(const std::optional<Tensor>& ranges, int64_t groups) {
  STD_TORCH_CHECK(ranges.has_value() && ranges->scalar_type() == ScalarType::Float && ranges->numel() == 2 * groups,
                  "ranges: expected float32 [", groups, ", 2] with block_size 0");
  return torch::stable::contiguous(*ranges);
}
// The tensor that takes the ranges found, of the same device as x.
inline Tensor new_ranges(const Tensor& x, const Layout& layout) {
  return layout.block_size ? torch::stable::new_empty(x, {layout.blocks(), 2}, ScalarType::BFloat16)
                           : torch::stable::new_empty(x, {layout.groups, 2}, ScalarType::Float);
}
inline void check_codes(const Tensor& codes, const Tensor& ranges, const Layout& layout) {
  STD_TORCH_CHECK(layout.outer >= 0 && layout.groups >= 0 && layout.inner >= 0, "outer, groups, inner: expected >= 0");
  STD_TORCH_CHECK(codes.scalar_type() == ScalarType::Byte && codes.numel() == layout.code_bytes(),
                  "codes: expected uint8 [", layout.code_bytes(), "], got ", codes.numel(), " elements");
  const bool block = layout.block_size != 0;
  STD_TORCH_CHECK(ranges.scalar_type() == (block ? ScalarType::BFloat16 : ScalarType::Float) &&
                      ranges.numel() == 2 * (block ? layout.blocks() : layout.groups),
                  "ranges: expected ", block ? "bfloat16 [" : "float32 [", block ? layout.blocks() : layout.groups, ", 2]");
}

// A large tensor that is about to be written for the first time: ask for huge pages. A fresh page costs the kernel more
// than filling it costs us (64 MiB: 35 ms in small pages, 8 in huge ones, where transparent huge pages are on request).
inline void expect_writes(const Tensor& x) {
#if defined(__linux__)
  constexpr uintptr_t kHuge = 2 << 20, kWorthwhile = 4 << 20;
  const uintptr_t bytes = (uintptr_t)x.numel() * x.element_size();
  if (bytes < kWorthwhile) return;
  const uintptr_t begin = ((uintptr_t)x.data_ptr() + kHuge - 1) / kHuge * kHuge;
  const uintptr_t end = ((uintptr_t)x.data_ptr() + bytes) / kHuge * kHuge;
  madvise((void*)begin, end - begin, MADV_HUGEPAGE);  // a wish: where it fails, nothing is lost
#endif
}
inline Tensor new_large(const Tensor& like, torch::headeronly::IntHeaderOnlyArrayRef sizes, ScalarType type) {
  Tensor out = torch::stable::new_empty(like, sizes, type);
  expect_writes(out);
  return out;
}

// Splits [0, n) into shares that begin at multiples of unit and are not too small, one for each thread.
template <class F>
void parallel_values(int64_t n, int64_t unit, const F& f) {
  constexpr int64_t kShare = 32768;  // values, below which another thread does not pay
  torch::stable::parallel_for(0, (n + unit - 1) / unit, std::max<int64_t>(1, kShare / unit),
                              [&](int64_t begin, int64_t end) { f(begin * unit, std::min(n, end * unit)); });
}

// Reads a 3-D tensor of any strides as float32, in logical contiguous order.
class Reader {
 public:
  Reader(const Tensor& x, const char* name) : type_(dtype_of(x, name)), data_((const char*)x.const_data_ptr()) {
    STD_TORCH_CHECK(x.dim() == 3, name, ": expected 3 dimensions, got ", x.dim());
    int64_t found = 0;
    for (int64_t d = 2; d >= 0; --d) {  // neighbouring dimensions that one stride spans become one
      if (x.size(d) == 1) continue;
      if (found && x.stride(d) == size_[found - 1] * stride_[found - 1]) {
        size_[found - 1] *= x.size(d);
      } else {
        size_[found] = x.size(d);
        stride_[found++] = x.stride(d);
      }
    }
  }

  // Calls f(values, n) for pieces of the values with linear index begin to end - 1, in order.
  template <class F>
  void each(int64_t begin, int64_t end, const F& f) const {
    alignas(64) float buffer[kChunk];
    if (begin >= end) return;
    const int64_t size = size_[0], stride = stride_[0];
    int64_t within = begin % size, row = begin / size;
    while (begin < end) {
      int64_t n = 0;
      if (type_ == DType::f32 && stride == 1) {  // nothing to convert: hand out the row itself, if it is long enough
        const int64_t m = std::min(size - within, end - begin);
        if (m >= kChunk / 2 || m == end - begin) {
          f((const float*)at(row, within), m);
          begin += m, within += m;
          if (within == size) within = 0, ++row;
          continue;
        }
      }
      while (n < kChunk && begin < end) {
        const int64_t m = std::min(std::min(size - within, kChunk - n), end - begin);
        load_floats(type_, at(row, within), stride, m, buffer + n);
        n += m, begin += m, within += m;
        if (within == size) within = 0, ++row;
      }
      f((const float*)buffer, n);
    }
  }

 private:
  const void* at(int64_t row, int64_t within) const {
    const int64_t offset = row / size_[1] * stride_[2] + row % size_[1] * stride_[1] + within * stride_[0];
    return data_ + offset * element_size(type_);
  }
  DType type_;
  const char* data_;
  int64_t size_[3] = {1, 1, 1}, stride_[3] = {1, 0, 0};  // innermost first
};

}  // namespace mesa
