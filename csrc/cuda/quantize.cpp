// Torch side of quantising on CUDA.
#include "quantize.h"

#include "glue.h"

namespace mesa {
namespace {

std::tuple<Tensor, Tensor> quantize(const Tensor& x, const std::optional<Tensor>& ranges, int64_t bits,
                                    int64_t block_size, int64_t seed, bool stochastic) {
  constexpr const char* kName = "quantize";
  const DType dtype = dtype_of(x, kName, "x");
  const View3 view = view_of(x, kName, "x");
  check_coding(bits, block_size, kName);
  const OnDevice on(x);
  const int64_t n = view.outer * view.groups * view.inner;
  Tensor codes = new_codes(x, n, bits);
  if (block_size) {
    Tensor found = new_block_ranges(x, n, block_size);
    if (n) {
      check_launch(launch_quantize_blocks(x.const_data_ptr(), view, dtype, (int)bits, (int)block_size, (uint64_t)seed,
                                          stochastic, mutable_data<uint8_t>(codes), found.mutable_data_ptr(),
                                          on.stream()), kName);
    }
    return {codes, found};
  }
  const Tensor given = given_ranges(ranges, x, view.groups, kName);
  Tensor observed = new_tensor(x, {view.groups, 2}, ScalarType::Float);
  if (view.groups) {
    check_launch(launch_quantize_groups(x.const_data_ptr(), view, dtype, data<float>(given), (int)bits, (uint64_t)seed,
                                        stochastic, mutable_data<uint8_t>(codes), mutable_data<float>(observed),
                                        on.stream()), kName);
  }
  return {codes, observed};
}

Tensor dequantize_affine(const Tensor& codes, const Tensor& ranges, int64_t outer, int64_t groups, int64_t inner,
                         int64_t bits, int64_t block_size, const std::optional<Tensor>& scale,
                         const std::optional<Tensor>& shift, int64_t spatial, bool relu, ScalarType dtype) {
  constexpr const char* kName = "dequantize_affine";
  const DType out_dtype = dtype_from(dtype, kName);
  const int64_t n = outer * groups * inner;
  check_coding(bits, block_size, kName);
  const Coded coded(codes, ranges, n, groups, bits, block_size, kName);
  const OnDevice on(codes);
  const auto a = float_vector(scale, codes, kName, "scale"), b = float_vector(shift, codes, kName, "shift");
  const int64_t channels = a ? a->numel() : b ? b->numel() : 0;
  STD_TORCH_CHECK(!a || !b || a->numel() == b->numel(), "mesa_seg::", kName, ": scale has ", a ? a->numel() : 0,
                  " channels, shift ", b ? b->numel() : 0);
  STD_TORCH_CHECK(spatial > 0 && (!channels || n % (channels * spatial) == 0), "mesa_seg::", kName, ": ", channels,
                  " channels of ", spatial, " values (spatial) do not divide ", n, " values");
  Tensor y = new_tensor(codes, {outer, groups, inner}, dtype);
  if (n) {
    check_launch(launch_dequantize(coded.codes(), coded.coding(), outer, groups, inner, a ? data<float>(*a) : nullptr,
                                   b ? data<float>(*b) : nullptr, channels, spatial, relu, y.mutable_data_ptr(),
                                   out_dtype, on.stream()), kName);
  }
  return y;
}

Tensor dequantize(const Tensor& codes, const Tensor& ranges, int64_t outer, int64_t groups, int64_t inner, int64_t bits,
                  int64_t block_size, ScalarType dtype) {
  return dequantize_affine(codes, ranges, outer, groups, inner, bits, block_size, std::nullopt, std::nullopt, 1, false,
                           dtype);
}

Tensor group_range(const Tensor& x) {
  constexpr const char* kName = "group_range";
  const DType dtype = dtype_of(x, kName, "x");
  const View3 view = view_of(x, kName, "x");
  const OnDevice on(x);
  Tensor observed = new_tensor(x, {view.groups, 2}, ScalarType::Float);
  if (view.groups) {
    check_launch(launch_quantize_groups(x.const_data_ptr(), view, dtype, nullptr, 0, 0, false, nullptr,
                                        mutable_data<float>(observed), on.stream()), kName);
  }
  return observed;
}

void update_ranges(Tensor running, const Tensor& observed, double decay) {
  constexpr const char* kName = "update_ranges";
  STD_TORCH_CHECK(running.scalar_type() == ScalarType::Float && observed.scalar_type() == ScalarType::Float &&
                      running.dim() == 2 && running.size(1) == 2 && observed.dim() == 2 && observed.size(1) == 2 &&
                      observed.size(0) == running.size(0) && running.is_contiguous(),
                  "mesa_seg::", kName, ": running (contiguous) and observed must be float32 [groups, 2]");
  check_on(observed, running, kName, "observed");
  const OnDevice on(running);
  const Tensor o = torch::stable::contiguous(observed);
  if (running.size(0)) {
    check_launch(launch_update_ranges(mutable_data<float>(running), data<float>(o), (float)decay, running.size(0),
                                      on.stream()), kName);
  }
}

}  // namespace
}  // namespace mesa

MESA_CUDA_KERNELS(m) {
  m.impl("quantize", TORCH_BOX(&mesa::quantize));
  m.impl("dequantize", TORCH_BOX(&mesa::dequantize));
  m.impl("dequantize_affine", TORCH_BOX(&mesa::dequantize_affine));
  m.impl("group_range", TORCH_BOX(&mesa::group_range));
  m.impl("update_ranges", TORCH_BOX(&mesa::update_ranges));
}
