// Torch side of window attention on CUDA.
#include "window_attention.h"

#include "../common/window_attention_check.h"
#include "glue.h"

namespace mesa {
namespace {

Tensor as_float(const Tensor& x) { return torch::stable::contiguous(torch::stable::to(x, ScalarType::Float)); }

Attention attention_of(const Tensor& qkv, const std::optional<Tensor>& pad, const Tensor& bias, int64_t heads,
                       int64_t window, int64_t shift, double scale, const char* name) {
  check_attention(qkv, pad, bias, heads, window, shift, kMaxWindow);
  check_on(bias, qkv, name, "bias");
  Attention a;
  a.map = window_map((int)qkv.size(1), (int)qkv.size(2), (int)window, (int)shift);
  a.batch = (int)qkv.size(0);
  a.heads = (int)heads;
  a.dim = (int)(qkv.size(3) / 3 / heads);
  a.scale = (float)scale;
  a.dtype = dtype_of(qkv, name, "qkv");
  return a;
}

void check_fits(const Attention& a, bool backward, const char* name) {
  STD_TORCH_CHECK(attention_fits(a, backward), "mesa_seg::", name, ": window ", a.map.window, " with heads of ", a.dim,
                  " channels: expected less, a window does not fit into this device's shared memory");
}

Tensor window_attention(const Tensor& qkv, const std::optional<Tensor>& pad, const Tensor& bias, int64_t heads,
                        int64_t window, int64_t shift, double scale) {
  const char* const name = "window_attention";
  const Attention a = attention_of(qkv, pad, bias, heads, window, shift, scale, name);
  const OnDevice on(qkv);
  const Tensor x = torch::stable::contiguous(qkv), b = as_float(bias);
  const std::optional<Tensor> p = float_vector(pad, x, name, "pad");
  Tensor out = new_tensor(x, {x.size(0), x.size(1), x.size(2), x.size(3) / 3}, x.scalar_type());
  if (out.numel()) {
    check_fits(a, false, name);
    Tensor workspace = new_tensor(x, {attention_workspace(a)}, ScalarType::Float);
    check_launch(launch_window_attention(x.const_data_ptr(), p ? data<float>(*p) : nullptr, data<float>(b),
                                         out.mutable_data_ptr(), mutable_data<float>(workspace), a, on.stream()), name);
  }
  return out;
}

std::tuple<Tensor, Tensor, Tensor> window_attention_backward(const Tensor& grad, const Tensor& qkv,
                                                             const std::optional<Tensor>& pad, const Tensor& bias,
                                                             int64_t heads, int64_t window, int64_t shift, double scale) {
  const char* const name = "window_attention_backward";
  const Attention a = attention_of(qkv, pad, bias, heads, window, shift, scale, name);
  check_attention_grad(grad, qkv);
  check_on(grad, qkv, name, "grad");
  const OnDevice on(qkv);
  const Tensor g = torch::stable::contiguous(grad), x = torch::stable::contiguous(qkv), b = as_float(bias);
  const std::optional<Tensor> p = float_vector(pad, x, name, "pad");
  Tensor gqkv = new_like(x), gpad = new_tensor(x, {x.size(3)}, ScalarType::Float);
  Tensor gbias = new_tensor(x, {heads, a.tokens(), a.tokens()}, ScalarType::Float);
  if (gqkv.numel() == 0) {
    torch::stable::zero_(gpad);
    torch::stable::zero_(gbias);
    return {gqkv, gpad, gbias};
  }
  check_fits(a, true, name);
  Tensor workspace = new_tensor(x, {attention_backward_workspace(a)}, ScalarType::Float);
  check_launch(launch_window_attention_backward(g.const_data_ptr(), x.const_data_ptr(), p ? data<float>(*p) : nullptr, data<float>(b),
                                                gqkv.mutable_data_ptr(), mutable_data<float>(gpad),
                                                mutable_data<float>(gbias), mutable_data<float>(workspace), a, on.stream()),
               name);
  return {gqkv, gpad, gbias};
}

}  // namespace
}  // namespace mesa

MESA_CUDA_KERNELS(m) {
  m.impl("window_attention", TORCH_BOX(&mesa::window_attention));
  m.impl("window_attention_backward", TORCH_BOX(&mesa::window_attention_backward));
}
