// Torch side of BatchNorm on CUDA.
#include "batch_norm.h"

#include "glue.h"

namespace mesa {
namespace {

struct Shape {
  int64_t batch, channels, positions;
  int64_t numel() const { return batch * channels * positions; }
};
Shape shape_of(const Tensor& x, const char* name, const char* argument) {
  STD_TORCH_CHECK(x.dim() == 3, "mesa_seg::", name, ": ", argument, " must be 3-D [B, C, S], got ", x.dim(), "-D");
  return {x.size(0), x.size(1), x.size(2)};
}
// The shape of what is encoded, once its coding has been found right.
Shape checked_shape(const Tensor& x, const char* argument, int64_t groups, int64_t bits, int64_t block_size,
                    const char* name) {
  const Shape s = shape_of(x, name, argument);
  STD_TORCH_CHECK(groups > 0 && s.channels % groups == 0, "mesa_seg::", name, ": groups must divide the ", s.channels,
                  " channels, got ", groups);
  check_coding(bits, block_size, name);
  return s;
}
// A float32 vector of one value a channel.
Tensor channel_vector(const Tensor& t, const Tensor& x, const Shape& s, const char* name, const char* argument) {
  const auto v = float_vector(t, x, name, argument);
  STD_TORCH_CHECK(v->numel() == s.channels, "mesa_seg::", name, ": ", argument, " must have ", s.channels,
                  " values, got ", v->numel());
  return *v;
}
std::optional<Tensor> channel_vector(const std::optional<Tensor>& t, const Tensor& x, const Shape& s, const char* name,
                                     const char* argument) {
  if (!t) return std::nullopt;
  return channel_vector(*t, x, s, name, argument);
}
// Null where there is no mask.
const uint8_t* mask_data(const Tensor& mask, const Tensor& x, const Shape& s, const char* name) {
  if (mask.numel() == 0) return nullptr;
  STD_TORCH_CHECK(mask.scalar_type() == ScalarType::Byte && mask.numel() == (s.numel() + 7) / 8 && mask.is_contiguous(),
                  "mesa_seg::", name, ": mask must be uint8 [", (s.numel() + 7) / 8, "], contiguous, or empty");
  check_on(mask, x, name, "mask");
  return data<uint8_t>(mask);
}

std::tuple<Tensor, Tensor> batch_norm_stats(const Tensor& x) {
  constexpr const char* kName = "batch_norm_stats";
  const DType dtype = dtype_of(x, kName, "x");
  const Shape s = shape_of(x, kName, "x");
  const OnDevice on(x);
  const Tensor in = torch::stable::contiguous(x);
  Tensor mean = new_tensor(x, {s.channels}, ScalarType::Float), var = new_tensor(x, {s.channels}, ScalarType::Float);
  if (s.channels) {
    Tensor scratch =
        new_tensor(x, {s.channels, batch_norm_splits(s.batch, s.channels, s.positions), 3}, ScalarType::Double);
    check_launch(launch_batch_norm_stats(in.const_data_ptr(), dtype, s.batch, s.channels, s.positions,
                                         mutable_data<double>(scratch), mutable_data<float>(mean),
                                         mutable_data<float>(var), on.stream()), kName);
  }
  return {mean, var};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm_quantize(
    const Tensor& x, const Tensor& mean, const Tensor& rstd, const std::optional<Tensor>& weight,
    const std::optional<Tensor>& bias, bool relu, const std::optional<Tensor>& ranges, int64_t groups, int64_t bits,
    int64_t block_size, int64_t seed, bool stochastic) {
  constexpr const char* kName = "batch_norm_quantize";
  const DType dtype = dtype_of(x, kName, "x");
  const Shape s = checked_shape(x, "x", groups, bits, block_size, kName);
  const OnDevice on(x);
  const int64_t n = s.numel();
  const Tensor in = torch::stable::contiguous(x);
  const Tensor m = channel_vector(mean, x, s, kName, "mean"), r = channel_vector(rstd, x, s, kName, "rstd");
  const auto w = channel_vector(weight, x, s, kName, "weight"), b = channel_vector(bias, x, s, kName, "bias");
  const std::optional<Tensor> given =
      block_size ? std::nullopt : std::optional<Tensor>(given_ranges(ranges, x, groups, kName));
  Tensor y = new_like(in), codes = new_codes(x, n, bits);
  Tensor mask = new_tensor(x, {relu ? (n + 7) / 8 : 0}, ScalarType::Byte);
  Tensor found = block_size ? new_block_ranges(x, n, block_size) : new_tensor(x, {groups, 2}, ScalarType::Float);
  check_launch(launch_batch_norm_quantize(
                   in.const_data_ptr(), dtype, s.batch, s.channels, s.positions, data<float>(m), data<float>(r),
                   w ? data<float>(*w) : nullptr, b ? data<float>(*b) : nullptr, given ? data<float>(*given) : nullptr,
                   groups, (int)bits, (int)block_size, (uint64_t)seed, stochastic, y.mutable_data_ptr(),
                   relu ? mutable_data<uint8_t>(mask) : nullptr, mutable_data<uint8_t>(codes), found.mutable_data_ptr(),
                   on.stream()), kName);
  return {y, mask, codes, found};
}

std::tuple<Tensor, Tensor> batch_norm_backward_reduce(const Tensor& grad, const Tensor& mask, const Tensor& codes,
                                                      const Tensor& ranges, int64_t groups, int64_t bits,
                                                      int64_t block_size) {
  constexpr const char* kName = "batch_norm_backward_reduce";
  const DType dtype = dtype_of(grad, kName, "grad");
  const Shape s = checked_shape(grad, "grad", groups, bits, block_size, kName);
  check_on(codes, grad, kName, "codes");
  const OnDevice on(grad);
  const Coded coded(codes, ranges, s.numel(), groups, bits, block_size, kName);
  const Tensor g = torch::stable::contiguous(grad);
  Tensor sums = torch::stable::new_zeros(g, std::initializer_list<int64_t>{2, s.channels}, ScalarType::Float);
  if (s.numel()) {
    Tensor scratch =
        new_tensor(g, {batch_norm_splits(s.batch, s.channels, s.positions), 2, s.channels}, ScalarType::Float);
    check_launch(launch_batch_norm_backward_reduce(g.const_data_ptr(), mask_data(mask, grad, s, kName), dtype, s.batch,
                                                   s.channels, s.positions, coded.codes(), coded.coding(), groups,
                                                   mutable_data<float>(scratch), mutable_data<float>(sums), on.stream()),
                 kName);
  }
  return {torch::stable::select(sums, 0, 0), torch::stable::select(sums, 0, 1)};
}

Tensor batch_norm_backward(const Tensor& grad, const Tensor& mask, const Tensor& codes, const Tensor& ranges,
                           const Tensor& rstd, const std::optional<Tensor>& weight, const Tensor& mean_g,
                           const Tensor& mean_gx, int64_t groups, int64_t bits, int64_t block_size) {
  constexpr const char* kName = "batch_norm_backward";
  const DType dtype = dtype_of(grad, kName, "grad");
  const Shape s = checked_shape(grad, "grad", groups, bits, block_size, kName);
  check_on(codes, grad, kName, "codes");
  const OnDevice on(grad);
  const Coded coded(codes, ranges, s.numel(), groups, bits, block_size, kName);
  const Tensor g = torch::stable::contiguous(grad), r = channel_vector(rstd, grad, s, kName, "rstd");
  const auto w = channel_vector(weight, grad, s, kName, "weight");
  const Tensor a = channel_vector(mean_g, grad, s, kName, "mean_g"), b = channel_vector(mean_gx, grad, s, kName, "mean_gx");
  Tensor gx = new_like(g);
  if (s.numel()) {
    check_launch(launch_batch_norm_backward(g.const_data_ptr(), mask_data(mask, grad, s, kName), dtype, s.batch,
                                            s.channels, s.positions, coded.codes(), coded.coding(), groups,
                                            data<float>(r), w ? data<float>(*w) : nullptr, data<float>(a), data<float>(b),
                                            gx.mutable_data_ptr(), on.stream()), kName);
  }
  return gx;
}

}  // namespace
}  // namespace mesa

MESA_CUDA_KERNELS(m) {
  m.impl("batch_norm_stats", TORCH_BOX(&mesa::batch_norm_stats));
  m.impl("batch_norm_quantize", TORCH_BOX(&mesa::batch_norm_quantize));
  m.impl("batch_norm_backward_reduce", TORCH_BOX(&mesa::batch_norm_backward_reduce));
  m.impl("batch_norm_backward", TORCH_BOX(&mesa::batch_norm_backward));
}
