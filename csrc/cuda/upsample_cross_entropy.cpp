// Torch side of the segmentation loss on CUDA.
#include "upsample_cross_entropy.h"

#include "glue.h"

namespace mesa {
namespace {

LabelType label_type(const Tensor& labels) {
  switch (labels.scalar_type()) {
    case ScalarType::Long: return LabelType::i64;
    case ScalarType::Int: return LabelType::i32;
    case ScalarType::Short: return LabelType::i16;
    case ScalarType::Byte: return LabelType::u8;
    default: break;
  }
  STD_TORCH_CHECK(false, "mesa_seg::upsample_cross_entropy: labels must be int64, int32, int16 or uint8");
}

std::optional<Tensor> floats(const std::optional<Tensor>& t, const Tensor& logits, int64_t numel, const char* argument) {
  if (!t) return std::nullopt;
  STD_TORCH_CHECK(t->scalar_type() == ScalarType::Float && t->numel() == numel, "mesa_seg::upsample_cross_entropy: ",
                  argument, " must be float32 of ", numel, " values, got ", t->numel());
  check_on(*t, logits, "upsample_cross_entropy", argument);
  return torch::stable::contiguous(*t);
}

std::tuple<Tensor, Tensor, Tensor> upsample_cross_entropy(const Tensor& logits_, const Tensor& labels_,
                                                          const std::optional<Tensor>& weight_,
                                                          const std::optional<Tensor>& class_weight_, int64_t ignore_index,
                                                          bool align_corners, bool pixel_loss, bool gradient) {
  const char* const name = "upsample_cross_entropy";
  STD_TORCH_CHECK(logits_.dim() == 4 && labels_.dim() == 3 && logits_.size(0) == labels_.size(0) && logits_.size(1) > 0 &&
                      logits_.size(2) > 0 && logits_.size(3) > 0,
                  "mesa_seg::upsample_cross_entropy: logits [B, C, h, w] and labels [B, H, W] expected");
  check_on(labels_, logits_, name, "labels");
  CrossEntropy p = {};
  p.dtype = dtype_of(logits_, name, "logits");
  p.label_type = label_type(labels_);
  const OnDevice on(logits_);
  const Tensor logits = torch::stable::contiguous(logits_), labels = torch::stable::contiguous(labels_);
  const std::optional<Tensor> weight = floats(weight_, logits, labels.numel(), "weight");
  const std::optional<Tensor> class_weight = floats(class_weight_, logits, logits.size(1), "class_weight");
  p.logits = logits.const_data_ptr();
  p.labels = labels.const_data_ptr();
  p.weight = weight ? data<float>(*weight) : nullptr;
  p.class_weight = class_weight ? data<float>(*class_weight) : nullptr;
  p.ignore_index = ignore_index;
  p.batch = (int)logits.size(0);
  p.classes = (int)logits.size(1);
  p.rows = make_axis(logits.size(2), labels.size(1), align_corners);
  p.columns = make_axis(logits.size(3), labels.size(2), align_corners);

  const auto wanted = [&](bool wish, std::initializer_list<int64_t> shape) {
    return wish ? new_tensor(logits, shape, ScalarType::Float) : new_tensor(logits, {0}, ScalarType::Float);
  };
  Tensor loss = wanted(pixel_loss, {labels.size(0), labels.size(1), labels.size(2)});
  Tensor grad = wanted(gradient, {logits.size(0), logits.size(1), logits.size(2), logits.size(3)});
  Tensor sums = new_tensor(logits, {logits.size(0), 5}, ScalarType::Double);
  if (p.batch == 0) return {loss, grad, sums};
  Tensor scratch = wanted(gradient, {2, labels.numel()});
  Tensor partial = new_tensor(logits, {p.batch, cross_entropy_blocks(p), 5}, ScalarType::Double);
  p.loss = pixel_loss ? mutable_data<float>(loss) : nullptr;
  p.grad = gradient ? mutable_data<float>(grad) : nullptr;
  p.log_sum = mutable_data<float>(scratch);
  p.factor = p.log_sum + labels.numel();
  p.sums = mutable_data<double>(sums);
  p.partial = mutable_data<double>(partial);
  check_launch(launch_upsample_cross_entropy(p, on.stream()), name);
  return {loss, grad, sums};
}

}  // namespace
}  // namespace mesa

MESA_CUDA_KERNELS(m) { m.impl("upsample_cross_entropy", TORCH_BOX(&mesa::upsample_cross_entropy)); }
