#pragma once
// What the torch side of every CUDA operator needs, in the stable ABI. With MESA_EMU the same glue is built against the
// emulator: it registers its operators for CPU tensors in the namespace mesa_seg_emu.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <initializer_list>
#include <optional>
#include <tuple>

#include "launch.h"

#if defined(MESA_EMU)
#define MESA_CUDA_KERNELS(m) STABLE_TORCH_LIBRARY_IMPL(mesa_seg_emu, CPU, m)
#else
#define MESA_CUDA_KERNELS(m) STABLE_TORCH_LIBRARY_IMPL(mesa_seg, CUDA, m)
#endif

namespace mesa {

using torch::stable::Tensor;
using torch::headeronly::ScalarType;

// Makes the tensor's device current while it lives and gives the stream that torch uses there.
class OnDevice {
 public:
#if defined(MESA_EMU)
  explicit OnDevice(const Tensor&) : stream_(emulated_stream()) {}
#else
  explicit OnDevice(const Tensor& t) : guard_(t.get_device_index()) {
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(t.get_device_index(), &stream_));
  }
#endif
  void* stream() const { return stream_; }

 private:
#if !defined(MESA_EMU)
  torch::stable::accelerator::DeviceGuard guard_;
#endif
  void* stream_ = nullptr;
};

// Every launcher's result goes through this.
inline void check_launch(int error, const char* name) {
  STD_TORCH_CHECK(error == 0, "mesa_seg::", name, ": CUDA error ", error, ": ", error_text(error));
}

inline DType dtype_of(const Tensor& t, const char* name, const char* argument) {
  switch (t.scalar_type()) {
    case ScalarType::Float: return DType::f32;
    case ScalarType::Half: return DType::f16;
    case ScalarType::BFloat16: return DType::bf16;
    default: break;
  }
  STD_TORCH_CHECK(false, "mesa_seg::", name, ": ", argument, " must be float32, float16 or bfloat16");
}
inline DType dtype_from(ScalarType s, const char* name) {
  switch (s) {
    case ScalarType::Float: return DType::f32;
    case ScalarType::Half: return DType::f16;
    case ScalarType::BFloat16: return DType::bf16;
    default: break;
  }
  STD_TORCH_CHECK(false, "mesa_seg::", name, ": dtype must be float32, float16 or bfloat16");
}
inline void check_on(const Tensor& t, const Tensor& first, const char* name, const char* argument) {
  STD_TORCH_CHECK(t.is_cpu() == first.is_cpu() && t.get_device_index() == first.get_device_index(), "mesa_seg::", name,
                  ": ", argument, " is on another device than the first tensor");
}

// A contiguous tensor on t's device.
inline Tensor new_tensor(const Tensor& t, std::initializer_list<int64_t> shape, ScalarType dtype) {
  return torch::stable::new_empty(t, torch::headeronly::IntHeaderOnlyArrayRef(shape.begin(), shape.size()), dtype);
}
// A contiguous tensor of t's shape and dtype.
inline Tensor new_like(const Tensor& t) { return torch::stable::new_empty(t, t.sizes(), t.scalar_type()); }
template <class T>
const T* data(const Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}
template <class T>
T* mutable_data(const Tensor& t) {
  return static_cast<T*>(t.mutable_data_ptr());
}
// ---- codes ---------------------------------------------------------------------------------------------------------
inline View3 view_of(const Tensor& x, const char* name, const char* argument) {
  STD_TORCH_CHECK(x.dim() == 3, "mesa_seg::", name, ": ", argument, " must be 3-D [outer, groups, inner], got ",
                  x.dim(), "-D");
  return View3{x.size(0), x.size(1), x.size(2), x.stride(0), x.stride(1), x.stride(2)};
}
inline void check_coding(int64_t bits, int64_t block_size, const char* name) {
  STD_TORCH_CHECK(bits == 8 || bits == 4 || bits == 2, "mesa_seg::", name, ": bits must be 8, 4 or 2, got ", bits);
  STD_TORCH_CHECK(block_size == 0 || (block_size >= 16 && block_size <= 1024 && block_size % 8 == 0), "mesa_seg::",
                  name, ": block_size must be 0 or a multiple of 8 from 16 to 1024, got ", block_size);
}
inline int64_t code_bytes(int64_t n, int64_t bits) { return (n * bits + 7) / 8; }
inline Tensor new_codes(const Tensor& t, int64_t n, int64_t bits) {
  return new_tensor(t, {code_bytes(n, bits)}, ScalarType::Byte);
}
inline Tensor new_block_ranges(const Tensor& t, int64_t n, int64_t block_size) {
  return new_tensor(t, {(n + block_size - 1) / block_size, 2}, ScalarType::BFloat16);
}
// Ranges given by the caller for quantising in groups.
inline Tensor given_ranges(const std::optional<Tensor>& ranges, const Tensor& x, int64_t groups, const char* name) {
  STD_TORCH_CHECK(ranges && ranges->scalar_type() == ScalarType::Float && ranges->numel() == 2 * groups, "mesa_seg::",
                  name, ": ranges must be float32 [", groups, ", 2] where block_size is 0");
  check_on(*ranges, x, name, "ranges");
  return torch::stable::contiguous(*ranges);
}
// Codes and ranges that come back for backward, checked; it keeps the tensors alive.
class Coded {
 public:
  Coded(const Tensor& codes, const Tensor& ranges, int64_t n, int64_t groups, int64_t bits, int64_t block_size,
        const char* name)
      : codes_(torch::stable::contiguous(codes)), ranges_(torch::stable::contiguous(ranges)) {
    STD_TORCH_CHECK(codes.scalar_type() == ScalarType::Byte && codes.numel() == code_bytes(n, bits), "mesa_seg::", name,
                    ": codes must be uint8 of ", code_bytes(n, bits), " bytes, got ", codes.numel());
    const int64_t pairs = block_size ? (n + block_size - 1) / block_size : groups;
    STD_TORCH_CHECK(ranges.scalar_type() == (block_size ? ScalarType::BFloat16 : ScalarType::Float) &&
                        ranges.numel() == 2 * pairs,
                    "mesa_seg::", name, ": ranges must be ", block_size ? "bfloat16" : "float32", " [", pairs, ", 2]");
    check_on(ranges, codes, name, "ranges");
    coding_ = Coding{(int)bits, (int)block_size, ranges_.const_data_ptr()};
  }
  const uint8_t* codes() const { return data<uint8_t>(codes_); }
  const Coding& coding() const { return coding_; }

 private:
  Tensor codes_, ranges_;
  Coding coding_;
};
// An optional [C] parameter as contiguous float32.
inline std::optional<Tensor> float_vector(const std::optional<Tensor>& t, const Tensor& first, const char* name,
                                          const char* argument) {
  if (!t) return std::nullopt;
  STD_TORCH_CHECK(t->dim() == 1, "mesa_seg::", name, ": ", argument, " must be 1-D, got ", t->dim(), "-D");
  check_on(*t, first, name, argument);
  if (t->scalar_type() == ScalarType::Float) return torch::stable::contiguous(*t);
  return torch::stable::to(torch::stable::contiguous(*t), ScalarType::Float);
}

}  // namespace mesa
