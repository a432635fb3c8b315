// LayerNorm with its normalised output kept as codes.
#include <math.h>

#include <numeric>

#include "clones.h"
#include "elementwise.h"
#include "row_sums.h"

namespace mesa {
namespace {

// Rows of `channels` values: x̂ = (x - mean)/σ, y = x̂·weight + bias, 1/σ. The variance is summed around the mean. One step
// for all rows after the other: a row's steps wait for each other's results, different rows do not.
MESA_CLONES void forward_rows(const float* __restrict x, int64_t rows, int64_t channels, const RowOrder& order,
                              float eps, const float* __restrict weight, const float* __restrict bias,
                              float* __restrict mean, float* __restrict rstd, float* __restrict normalised,
                              float* __restrict y) {
  sum_rows<false>(x, rows, channels, order, nullptr, mean);
  for (int64_t r = 0; r < rows; ++r) mean[r] /= (float)channels;
  sum_rows<true>(x, rows, channels, order, mean, rstd);
  for (int64_t r = 0; r < rows; ++r) rstd[r] = 1.0f / sqrtf(rstd[r] / (float)channels + eps);
  for (int64_t r = 0; r < rows; ++r, x += channels, normalised += channels, y += channels) {
    const float middle = mean[r], scale = rstd[r];
    for (int64_t i = 0; i < channels; ++i) {
      const float v = (x[i] - middle) * scale;
      normalised[i] = v;
      y[i] = v * weight[i] + bias[i];
    }
  }
}

// Sums of ROWS rows of the backward pass, together, so that gw and gb are read and written once for all of them.
template <int64_t ROWS>
MESA_INLINE void backward_sums(const float* __restrict grad, const float* __restrict normalised, int64_t channels,
                               const float* __restrict weight, float* __restrict means, float* __restrict gw,
                               float* __restrict gb) {
  F16 sum[ROWS] = {}, product[ROWS] = {};
  for (int64_t i = 0; i < channels; i += kWidth) {
    const int64_t n = channels - i;
    const bool whole = n >= kWidth;
    const F16 w = whole ? load(weight + i) : load(weight + i, n);
    F16 to_gw = whole ? load(gw + i) : load(gw + i, n), to_gb = whole ? load(gb + i) : load(gb + i, n);
    for (int64_t r = 0; r < ROWS; ++r) {
      const float* gr = grad + r * channels + i;
      const float* vr = normalised + r * channels + i;
      const F16 gy = whole ? load(gr) : load(gr, n), v = whole ? load(vr) : load(vr, n), g = gy * w;
      sum[r] += g;
      product[r] += g * v;
      to_gw += gy * v;
      to_gb += gy;
    }
    if (whole) {
      store(gw + i, to_gw);
      store(gb + i, to_gb);
    } else {
      store(gw + i, to_gw, n);
      store(gb + i, to_gb, n);
    }
  }
  for (int64_t r = 0; r < ROWS; ++r) {
    means[2 * r] = sum_lanes(sum[r]) / (float)channels;
    means[2 * r + 1] = sum_lanes(product[r]) / (float)channels;
  }
}

// gx = (g - mean(g) - x̂·mean(g·x̂))/σ with g = grad·weight; adds Σ grad·x̂ to gw and Σ grad to gb. `means` has room for
// two values a row.
MESA_CLONES void backward_rows(const float* __restrict grad, const float* __restrict normalised, int64_t rows,
                               int64_t channels, const float* __restrict rstd, const float* __restrict weight,
                               float* __restrict means, float* __restrict gx, float* __restrict gw,
                               float* __restrict gb) {
  int64_t done = 0;
  for (; done + 2 <= rows; done += 2)
    backward_sums<2>(grad + done * channels, normalised + done * channels, channels, weight, means + 2 * done, gw, gb);
  if (done < rows)
    backward_sums<1>(grad + done * channels, normalised + done * channels, channels, weight, means + 2 * done, gw, gb);
  for (int64_t r = 0; r < rows; ++r, grad += channels, normalised += channels, gx += channels) {
    const float scale = rstd[r], mean = means[2 * r], along = means[2 * r + 1];
    for (int64_t i = 0; i < channels; ++i) gx[i] = (grad[i] * weight[i] - mean - normalised[i] * along) * scale;
  }
}

// Rows that are worked on at once: about `values` values.
int64_t rows_at_once(int64_t channels, int64_t values) {
  return std::max<int64_t>(1, values / std::max<int64_t>(1, channels));
}

std::tuple<Tensor, Tensor, Tensor, Tensor> layer_norm_quantize(const Tensor& x_, const std::optional<Tensor>& weight,
                                                               const std::optional<Tensor>& bias, double eps,
                                                               const std::optional<Tensor>& ranges, int64_t groups,
                                                               int64_t bits, int64_t block_size, int64_t seed,
                                                               bool stochastic) {
  check_coding(bits, block_size);
  STD_TORCH_CHECK(x_.dim() == 2, "x: expected [rows, C], got ", x_.dim(), " dimensions");
  const Tensor x = torch::stable::contiguous(x_);
  const int64_t rows = x.size(0), channels = x.size(1);
  STD_TORCH_CHECK(groups > 0 && channels % groups == 0, "groups: expected a divisor of ", channels, ", got ", groups);
  const Layout layout{rows, groups, channels / groups, (int)bits, block_size};
  std::optional<Tensor> given;
  if (!block_size) given = given_ranges(ranges, groups);
  const std::vector<float> w = channel_floats(weight, channels, 1.0f, "weight");
  const std::vector<float> b = channel_floats(bias, channels, 0.0f, "bias");
  Tensor y = new_large(x, x.sizes(), x.scalar_type());
  Tensor rstd = torch::stable::new_empty(x, {rows}, ScalarType::Float);
  Tensor codes = torch::stable::new_empty(x, {layout.code_bytes()}, ScalarType::Byte);
  Tensor found = new_ranges(x, layout);
  Encoder encoder(layout, given ? (const float*)given->const_data_ptr() : nullptr, found.mutable_data_ptr(),
                  (uint8_t*)codes.mutable_data_ptr(), (uint64_t)seed, stochastic);
  if (layout.numel() == 0) return {y, rstd, codes, found};
  const Input in(x, "x");
  const Output out(y);
  float* scales = (float*)rstd.mutable_data_ptr();
  const RowOrder order = row_order(channels);
  // A share begins at a whole row that begins a unit of the codes.
  const int64_t unit = encoder.unit() / std::gcd(encoder.unit(), channels);
  parallel_values(layout.numel(), unit * channels, [&](int64_t begin, int64_t end) {
    EncodeStream stream(encoder, begin);
    const int64_t at_once = rows_at_once(channels, 2 * kPiece);  // one row's sums overlap with the next one's
    std::vector<float> buffers((size_t)(3 * at_once * channels + 2 * at_once));
    float* normalised = buffers.data();
    float* wide = normalised + at_once * channels;
    float* result = wide + at_once * channels;
    float* means = result + at_once * channels;
    for (int64_t row = begin / channels; row < end / channels; row += at_once) {
      const int64_t n = std::min(at_once, end / channels - row), index = row * channels;
      float* to = out.at(index, result);
      forward_rows(in.at(index, n * channels, wide), n, channels, order, (float)eps, w.data(), b.data(), means,
                   scales + row, normalised, to);
      stream.push(normalised, n * channels);
      out.done(index, to, n * channels);
    }
    stream.finish();
  });
  return {y, rstd, codes, found};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(const Tensor& grad_, const Tensor& codes_, const Tensor& ranges_,
                                                       const Tensor& rstd_, const std::optional<Tensor>& weight,
                                                       int64_t groups, int64_t bits, int64_t block_size) {
  check_coding(bits, block_size);
  STD_TORCH_CHECK(grad_.dim() == 2, "grad: expected [rows, C], got ", grad_.dim(), " dimensions");
  const Tensor grad = torch::stable::contiguous(grad_), codes = torch::stable::contiguous(codes_),
               ranges = torch::stable::contiguous(ranges_), rstd = torch::stable::contiguous(rstd_);
  const int64_t rows = grad.size(0), channels = grad.size(1);
  STD_TORCH_CHECK(groups > 0 && channels % groups == 0, "groups: expected a divisor of ", channels, ", got ", groups);
  const Layout layout{rows, groups, channels / groups, (int)bits, block_size};
  check_codes(codes, ranges, layout);
  STD_TORCH_CHECK(rstd.scalar_type() == ScalarType::Float && rstd.numel() == rows, "rstd: expected float32 [", rows, "]");
  const std::vector<float> w = channel_floats(weight, channels, 1.0f, "weight");
  Tensor gx = new_large(grad, grad.sizes(), grad.scalar_type());
  Tensor gw = torch::stable::new_zeros(grad, {channels}, ScalarType::Float);
  Tensor gb = torch::stable::new_zeros(grad, {channels}, ScalarType::Float);
  if (layout.numel() == 0) return {gx, gw, gb};
  const Decoder decoder(layout, (const uint8_t*)codes.const_data_ptr(), ranges.const_data_ptr());
  const Input in(grad, "grad");
  const Output out(gx);
  const float* scales = (const float*)rstd.const_data_ptr();
  // Sums of parts of the rows; how many depends on the shape alone, so that the result does not depend on the threads.
  constexpr int64_t kPart = 16384, kParts = 64;
  const int64_t parts = std::max<int64_t>(1, std::min({kParts, rows / 8, layout.numel() / kPart})), length = (rows + parts - 1) / parts;
  std::vector<float> sums((size_t)(2 * parts * channels));
  torch::stable::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
    const int64_t at_once = rows_at_once(channels, kPiece);
    std::vector<float> buffers((size_t)(3 * at_once * channels + 2 * at_once));
    float* normalised = buffers.data();
    float* wide = normalised + at_once * channels;
    float* result = wide + at_once * channels;
    float* means = result + at_once * channels;
    for (int64_t part = first; part < last; ++part) {
      float* sum = &sums[(size_t)(2 * part * channels)];
      const int64_t end = std::min(rows, (part + 1) * length);
      for (int64_t row = part * length; row < end; row += at_once) {
        const int64_t n = std::min(at_once, end - row), index = row * channels;
        decoder.run(index, n * channels, normalised);
        float* to = out.at(index, result);
        backward_rows(in.at(index, n * channels, wide), normalised, n, channels, scales + row, w.data(), means, to, sum,
                      sum + channels);
        out.done(index, to, n * channels);
      }
    }
  });
  float* to_gw = (float*)gw.mutable_data_ptr();
  float* to_gb = (float*)gb.mutable_data_ptr();
  for (int64_t part = 0; part < parts; ++part) {
    const float* sum = &sums[(size_t)(2 * part * channels)];
    for (int64_t c = 0; c < channels; ++c) to_gw[c] += sum[c];
    for (int64_t c = 0; c < channels; ++c) to_gb[c] += sum[channels + c];
  }
  return {gx, gw, gb};
}

}  // namespace
}  // namespace mesa

STABLE_TORCH_LIBRARY_IMPL(mesa_seg, CPU, m) {
  m.impl("layer_norm_quantize", TORCH_BOX(&mesa::layer_norm_quantize));
  m.impl("layer_norm_backward", TORCH_BOX(&mesa::layer_norm_backward));
}
