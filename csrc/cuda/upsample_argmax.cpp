// Torch side of prediction without full-size logits on CUDA.
#include "upsample_argmax.h"

#include <vector>

#include "glue.h"

namespace mesa {
namespace {

Tensor upsample_argmax(const std::vector<Tensor>& logits, const std::vector<Tensor>& row_index,
                       const std::vector<Tensor>& row_weight, const std::vector<Tensor>& column_index,
                       const std::vector<Tensor>& column_weight, bool softmax) {
  const char* const name = "upsample_argmax";
  const size_t n = logits.size();
  STD_TORCH_CHECK(n > 0 && n <= (size_t)kMaxMaps, "mesa_seg::upsample_argmax: 1 to ", kMaxMaps, " maps expected, got ", n);
  STD_TORCH_CHECK(row_index.size() == n && row_weight.size() == n && column_index.size() == n && column_weight.size() == n,
                  "mesa_seg::upsample_argmax: one of each list for every map of logits expected");
  const OnDevice on(logits[0]);
  ArgmaxMaps p = {};
  p.maps = (int)n;
  p.classes = (int)logits[0].size(0);
  p.rows = row_index[0].size(0);
  p.columns = column_index[0].size(0);
  p.softmax = softmax;
  p.dtype = dtype_of(logits[0], name, "logits");
  for (const Tensor& x : logits)
    if (dtype_of(x, name, "logits") != p.dtype) p.dtype = DType::f32;
  std::vector<Tensor> kept;
  const auto list = [&](const Tensor& index, const Tensor& weight, int64_t length) {
    STD_TORCH_CHECK(index.dim() == 2 && weight.dim() == 2 && index.scalar_type() == ScalarType::Int &&
                        weight.scalar_type() == ScalarType::Float && index.size(0) == length && weight.size(0) == length &&
                        index.size(1) == weight.size(1) && index.size(1) > 0,
                    "mesa_seg::upsample_argmax: int32 indices and float32 weights [n, T] of one shape expected");
    check_on(index, logits[0], name, "index");
    check_on(weight, logits[0], name, "weight");
    kept.push_back(torch::stable::contiguous(index));
    kept.push_back(torch::stable::contiguous(weight));
    return TapList{data<int32_t>(kept[kept.size() - 2]), data<float>(kept.back()), (int)index.size(1)};
  };
  for (size_t i = 0; i < n; ++i) {
    Tensor x = logits[i];
    STD_TORCH_CHECK(x.dim() == 3 && x.size(0) == p.classes && x.numel() > 0,
                    "mesa_seg::upsample_argmax: logits [C, h, w] with the same C in all maps expected");
    check_on(x, logits[0], name, "logits");
    if (dtype_of(x, name, "logits") != p.dtype) x = torch::stable::to(x, ScalarType::Float);
    if ((x.size(1) - 1) * x.stride(1) + (x.size(2) - 1) * x.stride(2) > INT32_MAX)
      x = torch::stable::contiguous(x);  // the kernel's offsets in a class's map are 32 bits
    kept.push_back(x);
    ArgmaxMap& m = p.map[i];
    m.logits = x.const_data_ptr();
    m.channel = x.stride(0);
    m.row = x.stride(1);
    m.column = x.stride(2);
    m.height = (int)x.size(1);
    m.width = (int)x.size(2);
    m.rows = list(row_index[i], row_weight[i], p.rows);
    m.columns = list(column_index[i], column_weight[i], p.columns);
  }
  Tensor labels = new_tensor(logits[0], {p.rows, p.columns}, ScalarType::Long);
  if (labels.numel()) check_launch(launch_upsample_argmax(p, mutable_data<int64_t>(labels), on.stream()), name);
  return labels;
}

}  // namespace
}  // namespace mesa

MESA_CUDA_KERNELS(m) { m.impl("upsample_argmax", TORCH_BOX(&mesa::upsample_argmax)); }
