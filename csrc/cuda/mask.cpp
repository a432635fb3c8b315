// Torch side of the mask operators on CUDA.
#include "mask.h"

#include "glue.h"

namespace mesa {
namespace {

Tensor pack_mask(const Tensor& mask) {
  STD_TORCH_CHECK(mask.scalar_type() == ScalarType::Bool, "mesa_seg::pack_mask: mask must be bool");
  const OnDevice on(mask);
  const Tensor m = torch::stable::contiguous(mask);
  const int64_t n = m.numel();
  Tensor bits = new_tensor(m, {(n + 7) / 8}, ScalarType::Byte);
  if (n) {
    check_launch(launch_pack_mask(m.const_data_ptr(), mutable_data<uint8_t>(bits), n, on.stream()), "pack_mask");
  }
  return bits;
}

void check_bits(const Tensor& bits, int64_t n, const char* name) {
  STD_TORCH_CHECK(bits.scalar_type() == ScalarType::Byte && bits.numel() == (n + 7) / 8, "mesa_seg::", name,
                  ": bits must be uint8 of ", (n + 7) / 8, " bytes for ", n, " values, got ", bits.numel());
}

Tensor unpack_mask(const Tensor& bits, int64_t numel) {
  check_bits(bits, numel, "unpack_mask");
  const OnDevice on(bits);
  const Tensor b = torch::stable::contiguous(bits);
  Tensor mask = new_tensor(b, {numel}, ScalarType::Bool);
  if (numel) {
    check_launch(launch_unpack_mask(data<uint8_t>(b), mask.mutable_data_ptr(), numel, on.stream()), "unpack_mask");
  }
  return mask;
}

std::tuple<Tensor, Tensor> relu_mask(const Tensor& x) {
  const DType dtype = dtype_of(x, "relu_mask", "x");
  const OnDevice on(x);
  const Tensor in = torch::stable::contiguous(x);
  const int64_t n = in.numel();
  Tensor y = new_like(in), bits = new_tensor(in, {(n + 7) / 8}, ScalarType::Byte);
  if (n) {
    check_launch(launch_relu_mask(in.const_data_ptr(), y.mutable_data_ptr(), mutable_data<uint8_t>(bits), n, dtype,
                                  on.stream()), "relu_mask");
  }
  return {y, bits};
}

Tensor mask_multiply(const Tensor& grad, const Tensor& bits, double scale) {
  const DType dtype = dtype_of(grad, "mask_multiply", "grad");
  check_bits(bits, grad.numel(), "mask_multiply");
  check_on(bits, grad, "mask_multiply", "bits");
  const OnDevice on(grad);
  const Tensor g = torch::stable::contiguous(grad), b = torch::stable::contiguous(bits);
  Tensor out = new_like(g);
  if (g.numel()) {
    check_launch(launch_mask_multiply(g.const_data_ptr(), data<uint8_t>(b), out.mutable_data_ptr(), (float)scale,
                                      g.numel(), dtype, on.stream()), "mask_multiply");
  }
  return out;
}

}  // namespace
}  // namespace mesa

MESA_CUDA_KERNELS(m) {
  m.impl("pack_mask", TORCH_BOX(&mesa::pack_mask));
  m.impl("unpack_mask", TORCH_BOX(&mesa::unpack_mask));
  m.impl("relu_mask", TORCH_BOX(&mesa::relu_mask));
  m.impl("mask_multiply", TORCH_BOX(&mesa::mask_multiply));
}
