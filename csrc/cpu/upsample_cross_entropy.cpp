// Cross-entropy of bilinearly upsampled logits with its gradient: arguments, bands of rows, and the order of the sums.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>
#include "../common/upsample.h"
#include "class_map.h"
#include "floats.h"

namespace mesa {
namespace {

using torch::stable::Tensor;
using ScalarType = torch::headeronly::ScalarType;

struct Pixel {
  int32_t column, label;
  float weight;
};

struct Sums {
  double loss = 0, kept = 0, correct = 0, class_weight = 0;
  int64_t wrong = -1;  // place of the first label that is no class
};

struct Scratch;
struct Problem {
  int64_t classes, lanes, height, width, rows, columns, tile;
  std::vector<Tap> row_taps, column_taps;
  std::vector<int64_t> row_begin, column_begin;  // [height + 1], [width + 1]: positions whose first source is at least i
  const void* labels;
  const float* weight;        // [B, H, W] or null
  const float* class_weight;  // [C] or null
  int64_t ignore_index;
  float* loss;                // [B, H, W] or null
  // Pixels that are not ignored among columns [start, stop) of a row; ends[i] of them are before column start + i.
  int64_t (*read_row)(const Problem&, int64_t image, int64_t y, int64_t start, int64_t stop, Pixel* pixels, int32_t* ends,
                      Sums& sums);
};

struct Band {
  int64_t image, first, last;  // source rows [first, last)
};

struct Scratch {
  float *row, *row_gradient;
  float* values[4];
  Pixel* pixels;
  int32_t* ends;
};

template <class L>
int64_t read_row(const Problem& p, int64_t image, int64_t y, int64_t start, int64_t stop, Pixel* pixels, int32_t* ends,
                 Sums& sums) {
  const int64_t base = (image * p.rows + y) * p.columns;
  const L* labels = static_cast<const L*>(p.labels) + base;
  int32_t n = 0;
  for (int64_t x = start; x < stop; ++x) {
    ends[x - start] = n;
    const int64_t label = labels[x];
    if (label == p.ignore_index) continue;
    if (label < 0 || label >= p.classes) {
      const int64_t place = y * p.columns + x;
      if (sums.wrong < 0 || place < sums.wrong) sums.wrong = place;
      continue;
    }
    const float each = p.class_weight ? p.class_weight[label] : 1.0f;
    sums.class_weight += each;
    pixels[n++] = {(int32_t)x, (int32_t)label, p.weight ? each * p.weight[base + x] : each};
  }
  ends[stop - start] = n;
  sums.kept += n;
  return n;
}

// Whether no class before `label` is as large as peak.
bool is_first(const float* z, int64_t label, float peak) {
  for (int64_t c = 0; c < label; ++c)
    if (z[c] == peak) return false;
  return true;
}

#define MESA_KERNEL "upsample_cross_entropy_kernel.h"
#include "each_instruction_set.h"

void run_band(const Problem& p, const Band& band, const float* source, float* gradient, Scratch& s, Sums& sums) {
  switch (instruction_set()) {
#if defined(MESA_HAS_X86_LEVELS)
    case 4: return v4::run_band(p, band, source, gradient, s, sums);
    case 3: return v3::run_band(p, band, source, gradient, s, sums);
#endif
    default: return plain::run_band(p, band, source, gradient, s, sums);
  }
}

void fill_axis(int64_t in, int64_t out, bool align_corners, std::vector<Tap>& taps, std::vector<int64_t>& begin) {
  const Axis axis = make_axis(in, out, align_corners);
  taps.resize(out);
  begin.assign(in + 1, out);
  for (int64_t i = 0; i < out; ++i) taps[i] = source_tap(axis, i);
  for (int64_t i = out - 1; i >= 0; --i) begin[taps[i].first] = i;
  for (int64_t i = in - 1; i >= 0; --i) begin[i] = std::min(begin[i], begin[i + 1]);
}

template <class T>
void load_rows(const void* logits, const int64_t* strides, const Problem& p, int64_t image, int64_t first, int64_t count,
               float* to) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t y = std::min(first + i, p.height - 1);
    load_class_row(static_cast<const T*>(logits) + image * strides[0] + y * strides[2],
                   {strides[1], strides[2], strides[3]}, p.classes, p.width, p.lanes, to + i * (p.width + 1) * p.lanes);
  }
}

// A row of the gradient, [w + 1, lanes], to (or onto) [C, h, w]; the last column belongs to the one before.
void store_row(const Problem& p, float* from, bool add, float* to) {
  float* last = from + (p.width - 1) * p.lanes;
  for (int64_t c = 0; c < p.classes; ++c) last[c] += last[c + p.lanes];
  const int64_t plane = p.height * p.width;
  for (int64_t c = 0; c < p.classes; c += kClassPad)
    for (int64_t x = 0; x < p.width; ++x)
      for (int64_t i = c; i < std::min(c + kClassPad, p.classes); ++i) {
        float& place = to[i * plane + x];
        place = add ? place + from[x * p.lanes + i] : from[x * p.lanes + i];
      }
}

std::tuple<Tensor, Tensor, Tensor> upsample_cross_entropy(const Tensor& logits, const Tensor& labels_,
                                                          const std::optional<Tensor>& weight_,
                                                          const std::optional<Tensor>& class_weight_, int64_t ignore_index,
                                                          bool align_corners, bool pixel_loss, bool want_gradient) {
  STD_TORCH_CHECK(logits.dim() == 4 && labels_.dim() == 3 && logits.size(0) == labels_.size(0) && logits.size(1) > 0 &&
                      logits.size(2) > 0 && logits.size(3) > 0,
                  "upsample_cross_entropy: logits [B, C, h, w] and labels [B, H, W] expected");
  Problem p;
  const int64_t batch = logits.size(0);
  p.classes = logits.size(1);
  p.lanes = class_lanes(p.classes);
  p.height = logits.size(2);
  p.width = logits.size(3);
  p.rows = labels_.size(1);
  p.columns = labels_.size(2);
  p.tile = std::max<int64_t>(1, std::min(p.width, 2048 / p.lanes));
  p.ignore_index = ignore_index;

  const Tensor labels = torch::stable::contiguous(labels_);
  p.labels = labels.const_data_ptr();
  Tensor weight, class_weight;
  p.weight = p.class_weight = nullptr;
  if (weight_) {
    STD_TORCH_CHECK(weight_->scalar_type() == ScalarType::Float && weight_->numel() == labels.numel(),
                    "upsample_cross_entropy: weight: float32 of labels' shape expected");
    weight = torch::stable::contiguous(*weight_);
    p.weight = static_cast<const float*>(weight.const_data_ptr());
  }
  if (class_weight_) {
    STD_TORCH_CHECK(class_weight_->scalar_type() == ScalarType::Float && class_weight_->numel() == p.classes,
                    "upsample_cross_entropy: class_weight: float32 [C] expected");
    class_weight = torch::stable::contiguous(*class_weight_);
    p.class_weight = static_cast<const float*>(class_weight.const_data_ptr());
  }
  switch (labels.scalar_type()) {
    case ScalarType::Long: p.read_row = &read_row<int64_t>; break;
    case ScalarType::Int: p.read_row = &read_row<int32_t>; break;
    case ScalarType::Short: p.read_row = &read_row<int16_t>; break;
    case ScalarType::Byte: p.read_row = &read_row<uint8_t>; break;
    default: STD_TORCH_CHECK(false, "upsample_cross_entropy: labels: int64, int32, int16 or uint8 expected");
  }
  auto load = &load_rows<float>;
  switch (logits.scalar_type()) {
    case ScalarType::Float: break;
    case ScalarType::Half: load = &load_rows<torch::headeronly::Half>; break;
    case ScalarType::BFloat16: load = &load_rows<torch::headeronly::BFloat16>; break;
    default: STD_TORCH_CHECK(false, "upsample_cross_entropy: logits: float32, float16 or bfloat16 expected");
  }
  const void* values = logits.const_data_ptr();
  const int64_t strides[4] = {logits.stride(0), logits.stride(1), logits.stride(2), logits.stride(3)};

  const auto optional = [&](bool wanted, std::initializer_list<int64_t> shape) {
    Tensor t = wanted ? torch::stable::new_empty(logits, shape, ScalarType::Float)
                      : torch::stable::new_empty(logits, {0}, ScalarType::Float);
    return t;
  };
  Tensor loss = optional(pixel_loss, {batch, p.rows, p.columns});
  Tensor gradient = optional(want_gradient, {batch, p.classes, p.height, p.width});
  Tensor sums = torch::stable::new_empty(logits, {batch, 5}, ScalarType::Double);
  p.loss = pixel_loss ? static_cast<float*>(loss.mutable_data_ptr()) : nullptr;
  if (p.loss) std::fill_n(p.loss, loss.numel(), 0.0f);
  float* grad = want_gradient ? static_cast<float*>(gradient.mutable_data_ptr()) : nullptr;
  fill_axis(p.height, p.rows, align_corners, p.row_taps, p.row_begin);
  fill_axis(p.width, p.columns, align_corners, p.column_taps, p.column_begin);

  // Bands are cut by the shape alone: sums are added in the same order with any number of threads. The gradient's row that
  // a band shares with the next one is added afterwards.
  const int64_t depth = std::clamp<int64_t>(p.height / 8, 1, 8);
  const int64_t bands = (p.height + depth - 1) / depth;
  const int64_t row_size = (p.width + 1) * p.lanes;
  std::vector<Sums> parts(batch * bands);
  const Floats shared = make_floats(grad ? batch * bands * row_size : 1);
  torch::stable::parallel_for(0, batch * bands, 1, [&](int64_t begin, int64_t end) {
    const int64_t tile_size = (p.tile + 1) * p.lanes, map_size = (depth + 1) * row_size;
    const Floats memory = make_floats(2 * map_size + 2 * tile_size + 4 * p.lanes);
    std::vector<Pixel> pixels(p.columns);
    std::vector<int32_t> ends(p.columns + 1);
    float *source = memory.get(), *band_gradient = source + map_size;
    Scratch s;
    s.row = band_gradient + map_size;
    s.row_gradient = s.row + tile_size;
    for (int k = 0; k < 4; ++k) s.values[k] = s.row_gradient + tile_size + k * p.lanes;
    s.pixels = pixels.data();
    s.ends = ends.data();
    std::fill_n(s.row_gradient, tile_size, 0.0f);
    for (int64_t unit = begin; unit < end; ++unit) {
      Band band;
      band.image = unit / bands;
      band.first = unit % bands * depth;
      band.last = std::min(band.first + depth, p.height);
      const int64_t count = band.last - band.first + 1;
      load(values, strides, p, band.image, band.first, count, source);
      if (grad) std::fill_n(band_gradient, count * row_size, 0.0f);
      run_band(p, band, source, grad ? band_gradient : nullptr, s, parts[unit]);
      if (!grad) continue;
      float* next = band_gradient + (count - 1) * row_size;
      if (band.last == p.height)
        for (int64_t i = 0; i < row_size; ++i) next[i - row_size] += next[i];
      else
        std::copy_n(next, row_size, shared.get() + unit * row_size);
      for (int64_t y = band.first; y < band.last; ++y)
        store_row(p, band_gradient + (y - band.first) * row_size, false,
                  grad + (band.image * p.classes * p.height + y) * p.width);
    }
  });
  if (grad)
    torch::stable::parallel_for(0, batch * bands, 1, [&](int64_t begin, int64_t end) {
      for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t y = unit % bands * depth + depth;
        if (y >= p.height) continue;
        store_row(p, shared.get() + unit * row_size, true, grad + (unit / bands * p.classes * p.height + y) * p.width);
      }
    });
  double* to = static_cast<double*>(sums.mutable_data_ptr());
  for (int64_t image = 0; image < batch; ++image) {
    Sums all;
    for (int64_t i = image * bands; i < (image + 1) * bands; ++i) {
      all.loss += parts[i].loss;
      all.kept += parts[i].kept;
      all.correct += parts[i].correct;
      all.class_weight += parts[i].class_weight;
      if (parts[i].wrong >= 0 && (all.wrong < 0 || parts[i].wrong < all.wrong)) all.wrong = parts[i].wrong;
    }
    const double row[5] = {all.loss, all.kept, all.correct, all.class_weight, (double)all.wrong};
    std::copy_n(row, 5, to + image * 5);
  }
  return {loss, gradient, sums};
}

}  // namespace
}  // namespace mesa

STABLE_TORCH_LIBRARY_IMPL(mesa_seg, CPU, m) {
  m.impl("upsample_cross_entropy", TORCH_BOX(&mesa::upsample_cross_entropy));
}
