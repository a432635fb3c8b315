// Operators of the quantize family on the CPU. Docstrings: mesa_seg/ops/quantize.py.
#include <mutex>
#include <tuple>
#include <vector>

#include "tensors.h"
namespace mesa {
namespace {

std::tuple<Tensor, Tensor> quantize(const Tensor& x, std::optional<Tensor> ranges, int64_t bits, int64_t block_size,
                                    int64_t seed, bool stochastic) {
  check_coding(bits, block_size);
  const Reader reader(x, "x");
  const Layout layout{x.size(0), x.size(1), x.size(2), (int)bits, block_size};
  Tensor codes = new_large(x, {layout.code_bytes()}, ScalarType::Byte);
  Tensor found = new_ranges(x, layout);
  std::optional<Tensor> given;
  if (!block_size) given = given_ranges(ranges, layout.groups);
  Encoder encoder(layout, given ? (const float*)given->const_data_ptr() : nullptr, found.mutable_data_ptr(),
                  (uint8_t*)codes.mutable_data_ptr(), (uint64_t)seed, stochastic);
  parallel_values(layout.numel(), encoder.unit(), [&](int64_t begin, int64_t end) {
    EncodeStream stream(encoder, begin);
    reader.each(begin, end, [&](const float* values, int64_t n) { stream.push(values, n); });
    stream.finish();
  });
  return {codes, found};
}

// Scale and shift by channel, as tables with an entry a value (channels change every value) or as runs.
class Affine {
 public:
  Affine(const std::optional<Tensor>& scale, const std::optional<Tensor>& shift, int64_t spatial, int64_t numel)
      : spatial_(spatial) {
    STD_TORCH_CHECK(spatial >= 1, "spatial: expected at least 1, got ", spatial);
    read(scale, "scale", scale_);
    read(shift, "shift", shift_);
    STD_TORCH_CHECK(!scale || !shift || scale_.size() == shift_.size(), "shift: expected ", scale_.size(),
                    " channels as in scale, got ", shift_.size());
    channels_ = (int64_t)std::max(scale_.size(), shift_.size());
    if (channels_ == 0) return;
    STD_TORCH_CHECK(numel % channels_ == 0 && numel / channels_ % spatial == 0, "scale, shift: ", channels_,
                    " channels of ", spatial, " values (spatial) do not divide ", numel, " values");
    if (spatial < kShort && spatial * channels_ <= kLongest) {
      table_ = (kChunk + spatial * channels_ - 1) / (spatial * channels_) * (spatial * channels_);
      spread(scale_);
      spread(shift_);
    }
  }
  void run(float* x, int64_t first, int64_t n) const {
    if (channels_ == 0) return;
    const int64_t length = table_ ? table_ : spatial_;
    int64_t within = first % length, channel = first / spatial_ % channels_;
    while (n > 0) {
      const int64_t m = std::min(length - within, n), at = table_ ? within : channel;
      const float* scale = scale_.empty() ? nullptr : &scale_[(size_t)at];
      const float* shift = shift_.empty() ? nullptr : &shift_[(size_t)at];
      if (table_)
        affine_chunk_each(x, m, scale, shift);
      else
        affine_chunk(x, m, scale, shift);
      x += m, n -= m, within = 0;
      if (++channel == channels_) channel = 0;
    }
  }

 private:
  static constexpr int64_t kShort = 256, kLongest = 8192;
  static void read(const std::optional<Tensor>& p, const char* name, std::vector<float>& out) {
    if (!p) return;
    const Tensor q = torch::stable::contiguous(*p);
    out.resize((size_t)q.numel());
    load_floats(dtype_of(q, name), q.const_data_ptr(), 1, q.numel(), out.data());
  }
  void spread(std::vector<float>& values) const {
    if (values.empty()) return;
    std::vector<float> table((size_t)table_);
    for (int64_t i = 0; i < table_; ++i) table[(size_t)i] = values[(size_t)(i / spatial_ % channels_)];
    values.swap(table);
  }
  int64_t spatial_, channels_ = 0, table_ = 0;
  std::vector<float> scale_, shift_;
};

Tensor dequantize_with(const Tensor& codes_, const Tensor& ranges_, int64_t outer, int64_t groups, int64_t inner,
                       int64_t bits, int64_t block_size, const Affine* affine, bool relu, ScalarType dtype) {
  check_coding(bits, block_size);
  const Layout layout{outer, groups, inner, (int)bits, block_size};
  check_codes(codes_, ranges_, layout);
  const DType type = dtype_of(dtype, "dtype");
  const Tensor codes = torch::stable::contiguous(codes_), ranges = torch::stable::contiguous(ranges_);
  Tensor out = new_large(codes, {outer, groups, inner}, dtype);
  char* data = (char*)out.mutable_data_ptr();
  const Decoder decoder(layout, (const uint8_t*)codes.const_data_ptr(), ranges.const_data_ptr());
  parallel_values(layout.numel(), 64, [&](int64_t begin, int64_t end) {
    alignas(64) float buffer[kChunk];
    for (int64_t i = begin; i < end;) {
      const int64_t n = std::min(kChunk, end - i);
      void* to = data + i * element_size(type);
      float* values = type == DType::f32 ? (float*)to : buffer;
      decoder.run(i, n, values);
      if (affine) affine->run(values, i, n);
      if (relu) relu_chunk(values, n);
      if (type != DType::f32) store_floats(type, values, n, to);
      i += n;
    }
  });
  return out;
}

Tensor dequantize(const Tensor& codes, const Tensor& ranges, int64_t outer, int64_t groups, int64_t inner, int64_t bits,
                  int64_t block_size, ScalarType dtype) {
  return dequantize_with(codes, ranges, outer, groups, inner, bits, block_size, nullptr, false, dtype);
}

Tensor dequantize_affine(const Tensor& codes, const Tensor& ranges, int64_t outer, int64_t groups, int64_t inner,
                         int64_t bits, int64_t block_size, std::optional<Tensor> scale, std::optional<Tensor> shift,
                         int64_t spatial, bool relu, ScalarType dtype) {
  const Affine affine(scale, shift, spatial, outer * groups * inner);
  return dequantize_with(codes, ranges, outer, groups, inner, bits, block_size, &affine, relu, dtype);
}

Tensor group_range(const Tensor& x) {
  const Reader reader(x, "x");
  const int64_t groups = x.size(1), inner = x.size(2);
  Tensor out = torch::stable::new_empty(x, {groups, 2}, ScalarType::Float);
  float* found = (float*)out.mutable_data_ptr();
  for (int64_t g = 0; g < groups; ++g) {
    found[2 * g] = __builtin_inff();
    found[2 * g + 1] = -__builtin_inff();
  }
  std::mutex mutex;
  parallel_values(x.numel(), 8, [&](int64_t begin, int64_t end) {
    RangeStream stream(groups, inner);
    int64_t first = begin;
    reader.each(begin, end, [&](const float* values, int64_t n) {
      stream.push(first, values, n);
      first += n;
    });
    stream.finish(mutex, found);
  });
  return out;
}

void update_ranges(Tensor running, const Tensor& observed_, double decay) {
  STD_TORCH_CHECK(running.scalar_type() == ScalarType::Float && running.is_contiguous(),
                  "running: expected contiguous float32");
  STD_TORCH_CHECK(observed_.scalar_type() == ScalarType::Float && observed_.numel() == running.numel() &&
                      running.numel() % 2 == 0,
                  "observed: expected float32 of the shape of running");
  const Tensor observed = torch::stable::contiguous(observed_);
  float* r = (float*)running.mutable_data_ptr();
  const float* o = (const float*)observed.const_data_ptr();
  const float keep = (float)decay, take = 1.0f - keep;
  for (int64_t i = 0; i < running.numel(); i += 2) {
    if (!(o[i] <= o[i + 1])) continue;
    r[i] = keep * r[i] + take * o[i];
    r[i + 1] = keep * r[i + 1] + take * o[i + 1];
  }
}

}  // namespace
}  // namespace mesa

STABLE_TORCH_LIBRARY_IMPL(mesa_seg, CPU, m) {
  m.impl("quantize", TORCH_BOX(&mesa::quantize));
  m.impl("dequantize", TORCH_BOX(&mesa::dequantize));
  m.impl("dequantize_affine", TORCH_BOX(&mesa::dequantize_affine));
  m.impl("group_range", TORCH_BOX(&mesa::group_range));
  m.impl("update_ranges", TORCH_BOX(&mesa::update_ranges));
}
