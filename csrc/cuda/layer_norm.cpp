// Torch side of LayerNorm on CUDA.
#include "layer_norm.h"

#include "glue.h"

namespace mesa {
namespace {

void check_rows(const Tensor& x, int64_t groups, const char* name, const char* argument) {
  STD_TORCH_CHECK(x.dim() == 2, "mesa_seg::", name, ": ", argument, " must be 2-D [rows, C], got ", x.dim(), "-D");
  STD_TORCH_CHECK(groups > 0 && x.size(1) % groups == 0, "mesa_seg::", name, ": groups must divide the ", x.size(1),
                  " channels, got ", groups);
}
std::optional<Tensor> channel_vector(const std::optional<Tensor>& t, const Tensor& x, int64_t channels, const char* name,
                                     const char* argument) {
  auto v = float_vector(t, x, name, argument);
  STD_TORCH_CHECK(!v || v->numel() == channels, "mesa_seg::", name, ": ", argument, " must have ", channels,
                  " values, got ", v ? v->numel() : 0);
  return v;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> layer_norm_quantize(const Tensor& x, const std::optional<Tensor>& weight,
                                                               const std::optional<Tensor>& bias, double eps,
                                                               const std::optional<Tensor>& ranges, int64_t groups,
                                                               int64_t bits, int64_t block_size, int64_t seed,
                                                               bool stochastic) {
  constexpr const char* kName = "layer_norm_quantize";
  const DType dtype = dtype_of(x, kName, "x");
  check_rows(x, groups, kName, "x");
  check_coding(bits, block_size, kName);
  const OnDevice on(x);
  const int64_t rows = x.size(0), channels = x.size(1), n = rows * channels;
  const auto w = channel_vector(weight, x, channels, kName, "weight"), b = channel_vector(bias, x, channels, kName, "bias");
  const std::optional<Tensor> given =
      block_size ? std::nullopt : std::optional<Tensor>(given_ranges(ranges, x, groups, kName));
  Tensor y = new_like(x), codes = new_codes(x, n, bits), rstd = new_tensor(x, {rows}, ScalarType::Float);
  Tensor mean = new_tensor(x, {rows}, ScalarType::Float);
  Tensor found = block_size ? new_block_ranges(x, n, block_size) : new_tensor(x, {groups, 2}, ScalarType::Float);
  check_launch(launch_layer_norm_quantize(
                   x.const_data_ptr(), rows, channels, x.stride(0), x.stride(1), dtype, w ? data<float>(*w) : nullptr,
                   b ? data<float>(*b) : nullptr, (float)eps, given ? data<float>(*given) : nullptr, groups, (int)bits,
                   (int)block_size, (uint64_t)seed, stochastic, y.mutable_data_ptr(), mutable_data<float>(mean),
                   mutable_data<float>(rstd), mutable_data<uint8_t>(codes), found.mutable_data_ptr(), on.stream()), kName);
  return {y, rstd, codes, found};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(const Tensor& grad, const Tensor& codes, const Tensor& ranges,
                                                       const Tensor& rstd, const std::optional<Tensor>& weight,
                                                       int64_t groups, int64_t bits, int64_t block_size) {
  constexpr const char* kName = "layer_norm_backward";
  const DType dtype = dtype_of(grad, kName, "grad");
  check_rows(grad, groups, kName, "grad");
  check_coding(bits, block_size, kName);
  check_on(codes, grad, kName, "codes");
  check_on(rstd, grad, kName, "rstd");
  const OnDevice on(grad);
  const int64_t rows = grad.size(0), channels = grad.size(1);
  STD_TORCH_CHECK(rstd.scalar_type() == ScalarType::Float && rstd.numel() == rows, "mesa_seg::", kName,
                  ": rstd must be float32 [", rows, "]");
  const Coded coded(codes, ranges, rows * channels, groups, bits, block_size, kName);
  const Tensor g = torch::stable::contiguous(grad), r = torch::stable::contiguous(rstd);
  const auto w = channel_vector(weight, grad, channels, kName, "weight");
  Tensor gx = new_like(g);
  // gw and gb are halves of one tensor where a kernel adds into them: two tensors are what comes out.
  Tensor sums = torch::stable::new_zeros(g, std::initializer_list<int64_t>{2, channels}, ScalarType::Float);
  if (rows && channels) {
    Tensor partial = new_tensor(g, {layer_norm_partial_rows(rows, channels), 2, channels}, ScalarType::Float);
    check_launch(launch_layer_norm_backward(g.const_data_ptr(), rows, channels, dtype, coded.codes(), coded.coding(),
                                            groups, data<float>(r), w ? data<float>(*w) : nullptr,
                                            gx.mutable_data_ptr(), mutable_data<float>(partial),
                                            mutable_data<float>(sums), on.stream()), kName);
  }
  return {gx, torch::stable::select(sums, 0, 0), torch::stable::select(sums, 0, 1)};
}

}  // namespace
}  // namespace mesa

MESA_CUDA_KERNELS(m) {
  m.impl("layer_norm_quantize", TORCH_BOX(&mesa::layer_norm_quantize));
  m.impl("layer_norm_backward", TORCH_BOX(&mesa::layer_norm_backward));
}
