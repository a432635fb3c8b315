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
  explicit OnDevice(const Tensor&) {}
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
inline const float* optional_data(const std::optional<Tensor>& t) { return t ? data<float>(*t) : nullptr; }

}  // namespace mesa
