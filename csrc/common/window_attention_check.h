#pragma once
// The arguments of the window attention operators, checked once for every device. For the torch side only.
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <stdint.h>
#include <initializer_list>
#include <optional>
#include <string>
namespace mesa {

inline std::string shape_text(const torch::stable::Tensor& x) {
  std::string text = "[";
  for (int64_t i = 0; i < x.dim(); ++i) text += (i ? ", " : "") + std::to_string(x.size(i));
  return text + "]";
}

inline bool has_shape(const torch::stable::Tensor& x, std::initializer_list<int64_t> shape) {
  if (x.dim() != (int64_t)shape.size()) return false;
  int64_t i = 0;
  for (const int64_t n : shape)
    if (x.size(i++) != n) return false;
  return true;
}

inline void check_attention_dtype(const char* name, const torch::stable::Tensor& x) {
  using torch::headeronly::ScalarType;
  const ScalarType t = x.scalar_type();
  STD_TORCH_CHECK(t == ScalarType::Float || t == ScalarType::Half || t == ScalarType::BFloat16, name,
                  ": expected float32, float16 or bfloat16, got dtype number ", (int)t);
}

inline void check_attention(const torch::stable::Tensor& qkv, const std::optional<torch::stable::Tensor>& pad,
                            const torch::stable::Tensor& bias, int64_t heads, int64_t window, int64_t shift,
                            int64_t largest_window) {
  STD_TORCH_CHECK(qkv.dim() == 4, "qkv: expected [B, H, W, 3C], got ", shape_text(qkv));
  check_attention_dtype("qkv", qkv);
  const int64_t width = qkv.size(3);
  STD_TORCH_CHECK(heads > 0 && width % (3 * heads) == 0, "heads: expected a divisor of C with qkv [B, H, W, 3C], got ", heads,
                  " for ", shape_text(qkv));
  STD_TORCH_CHECK(window > 0 && window <= largest_window, "window: expected 1 to ", largest_window, ", got ", window);
  STD_TORCH_CHECK(shift >= 0 && shift < window, "shift: expected 0 <= shift < window = ", window, ", got ", shift);
  if (pad) {
    STD_TORCH_CHECK(has_shape(*pad, {width}), "pad: expected [3C] = [", width, "], got ", shape_text(*pad));
    check_attention_dtype("pad", *pad);
  }
  const int64_t n = window * window;
  STD_TORCH_CHECK(has_shape(bias, {heads, n, n}), "bias: expected [heads, N, N] = [", heads, ", ", n, ", ", n, "], got ",
                  shape_text(bias));
  check_attention_dtype("bias", bias);
  STD_TORCH_CHECK(qkv.size(1) * qkv.size(2) < (int64_t)1 << 30, "qkv: expected fewer than 2^30 tokens a map, got ",
                  shape_text(qkv));
}

inline void check_attention_grad(const torch::stable::Tensor& grad, const torch::stable::Tensor& qkv) {
  STD_TORCH_CHECK(has_shape(grad, {qkv.size(0), qkv.size(1), qkv.size(2), qkv.size(3) / 3}),
                  "grad: expected [B, H, W, C] beside qkv ", shape_text(qkv), ", got ", shape_text(grad));
  STD_TORCH_CHECK(grad.scalar_type() == qkv.scalar_type(), "grad: expected qkv's dtype, number ", (int)qkv.scalar_type(),
                  ", got number ", (int)grad.scalar_type());
}

}  // namespace mesa
