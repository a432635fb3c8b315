// Torch side of GELU on CUDA.
#include "gelu.h"

#include "glue.h"

namespace mesa {
namespace {

std::tuple<Tensor, Tensor, Tensor> gelu_quantize(const Tensor& x, const std::optional<Tensor>& ranges, int64_t bits,
                                                 int64_t block_size, int64_t seed, bool stochastic, bool tanh) {
  constexpr const char* kName = "gelu_quantize";
  const DType dtype = dtype_of(x, kName, "x");
  const View3 view = view_of(x, kName, "x");
  check_coding(bits, block_size, kName);
  const OnDevice on(x);
  const int64_t n = view.outer * view.groups * view.inner;
  const std::optional<Tensor> given =
      block_size ? std::nullopt : std::optional<Tensor>(given_ranges(ranges, x, view.groups, kName));
  Tensor y = new_like(x), codes = new_codes(x, n, bits);
  Tensor found = block_size ? new_block_ranges(x, n, block_size) : new_tensor(x, {view.groups, 2}, ScalarType::Float);
  if (found.numel()) {
    check_launch(launch_gelu_quantize(x.const_data_ptr(), view, dtype, tanh, given ? data<float>(*given) : nullptr,
                                      (int)bits, (int)block_size, (uint64_t)seed, stochastic, y.mutable_data_ptr(),
                                      mutable_data<uint8_t>(codes), found.mutable_data_ptr(), on.stream()), kName);
  }
  return {y, codes, found};
}

Tensor gelu_backward(const Tensor& grad, const Tensor& codes, const Tensor& ranges, int64_t bits, int64_t block_size,
                     bool tanh) {
  constexpr const char* kName = "gelu_backward";
  const DType dtype = dtype_of(grad, kName, "grad");
  const View3 view = view_of(grad, kName, "grad");
  check_coding(bits, block_size, kName);
  check_on(codes, grad, kName, "codes");
  const OnDevice on(grad);
  const int64_t n = view.outer * view.groups * view.inner;
  const Coded coded(codes, ranges, n, view.groups, bits, block_size, kName);
  const Tensor g = torch::stable::contiguous(grad);
  Tensor out = new_like(g);
  if (n) {
    check_launch(launch_gelu_from_codes(coded.codes(), coded.coding(), view.outer, view.groups, view.inner, tanh,
                                        g.const_data_ptr(), out.mutable_data_ptr(), dtype, on.stream()), kName);
  }
  return out;
}

Tensor gelu_dequantize(const Tensor& codes, const Tensor& ranges, int64_t outer, int64_t groups, int64_t inner,
                       int64_t bits, int64_t block_size, bool tanh, ScalarType dtype) {
  constexpr const char* kName = "gelu_dequantize";
  const DType out_dtype = dtype_from(dtype, kName);
  check_coding(bits, block_size, kName);
  const OnDevice on(codes);
  const int64_t n = outer * groups * inner;
  const Coded coded(codes, ranges, n, groups, bits, block_size, kName);
  Tensor out = new_tensor(codes, {outer, groups, inner}, dtype);
  if (n) {
    check_launch(launch_gelu_from_codes(coded.codes(), coded.coding(), outer, groups, inner, tanh, nullptr,
                                        out.mutable_data_ptr(), out_dtype, on.stream()), kName);
  }
  return out;
}

}  // namespace
}  // namespace mesa

MESA_CUDA_KERNELS(m) {
  m.impl("gelu_quantize", TORCH_BOX(&mesa::gelu_quantize));
  m.impl("gelu_backward", TORCH_BOX(&mesa::gelu_backward));
  m.impl("gelu_dequantize", TORCH_BOX(&mesa::gelu_dequantize));
}
