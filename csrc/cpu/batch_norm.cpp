// Training BatchNorm (+ ReLU) with x̂ kept as codes. A tensor [B, C, S] is worked through in linear order; a `run` is a
// stretch of values of one channel.
#include <math.h>

#include "clones.h"
#include "elementwise.h"
#include "lanes.h"

namespace mesa {
namespace {

MESA_CLONES float sum_run(const float* x, int64_t n) { return sum(x, n); }
MESA_CLONES float squares_run(const float* x, int64_t n, float middle) { return sum_squares(x, n, middle); }

// Sums of g and g·x̂.
MESA_CLONES void products_run(const float* grad, const float* normalised, int64_t n, double* sum_g, double* sum_gx) {
  F16 g_sum = {}, product = {};
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const F16 g = load(grad + i);
    g_sum += g;
    product += g * load(normalised + i);
  }
  if (i < n) {
    const F16 g = load(grad + i, n - i);
    g_sum += g;
    product += g * load(normalised + i, n - i);
  }
  *sum_g += sum_lanes(g_sum);
  *sum_gx += sum_lanes(product);
}

struct Affine {
  float mean, rstd, weight, bias;
};

MESA_CLONES void forward_run(const float* __restrict x, int64_t n, Affine a, bool relu, float* __restrict normalised,
                             float* __restrict y) {
  const float floor = relu ? 0.0f : -INFINITY;
  for (int64_t i = 0; i < n; ++i) {
    const float v = (x[i] - a.mean) * a.rstd;
    const float out = v * a.weight + a.bias;
    normalised[i] = v;
    y[i] = out < floor ? floor : out;  // NaN stays
  }
}

// (g - mean_g - x̂·mean_gx)·scale
MESA_CLONES void backward_run(const float* __restrict grad, const float* __restrict normalised, int64_t n, float mean_g,
                              float mean_gx, float scale, float* __restrict gx) {
  for (int64_t i = 0; i < n; ++i) gx[i] = (grad[i] - mean_g - normalised[i] * mean_gx) * scale;
}

// Calls f(channel, offset, length) for the runs of n values from linear index `first` on.
template <class F>
void each_run(int64_t channels, int64_t positions, int64_t first, int64_t n, const F& f) {
  int64_t channel = first / positions % channels, within = first % positions;
  for (int64_t done = 0; done < n; within = 0) {
    const int64_t m = std::min(positions - within, n - done);
    f(channel, done, m);
    done += m;
    if (++channel == channels) channel = 0;
  }
}

// The gradient behind the ReLU: values of `grad` whose bit is set, 0 elsewhere. Without a mask the gradient itself.
class MaskedGrad {
 public:
  MaskedGrad(const Tensor& grad, const Tensor& mask)
      : in_(grad, "grad"), bits_(mask.numel() ? (const uint8_t*)mask.const_data_ptr() : nullptr) {
    STD_TORCH_CHECK(mask.scalar_type() == ScalarType::Byte && (!bits_ || mask.numel() == (grad.numel() + 7) / 8),
                    "mask: expected uint8 [", (grad.numel() + 7) / 8, "] or empty, got ", mask.numel(), " elements");
  }
  // n <= kPiece
  const float* at(int64_t index, int64_t n, float* buffer) const {
    const float* grad = in_.at(index, n, buffer);
    if (!bits_) return grad;
    if (grad != buffer) memcpy(buffer, grad, (size_t)n * sizeof(float));
    alignas(64) uint8_t set[kPiece + 8];
    const int64_t skip = index % 8;
    unpack_codes(bits_ + index / 8, n + skip, 1, set);
    mask_chunk(buffer, n, set + skip, 1.0f);
    return buffer;
  }

 private:
  Input in_;
  const uint8_t* bits_;
};

void check_map(const Tensor& x, const char* name, int64_t groups) {
  STD_TORCH_CHECK(x.dim() == 3, name, ": expected [B, C, S], got ", x.dim(), " dimensions");
  STD_TORCH_CHECK(groups > 0 && x.size(1) % groups == 0, "groups: expected a divisor of ", x.size(1), ", got ", groups);
}

Layout map_layout(const Tensor& x, int64_t groups, int64_t bits, int64_t block_size) {
  return Layout{x.size(0), groups, x.size(1) / groups * x.size(2), (int)bits, block_size};
}

std::tuple<Tensor, Tensor> batch_norm_stats(const Tensor& x_) {
  check_map(x_, "x", 1);
  const Tensor x = torch::stable::contiguous(x_);
  const int64_t batch = x.size(0), channels = x.size(1), positions = x.size(2);
  Tensor mean = torch::stable::new_empty(x, {channels}, ScalarType::Float);
  Tensor var = torch::stable::new_empty(x, {channels}, ScalarType::Float);
  float* means = (float*)mean.mutable_data_ptr();
  float* vars = (float*)var.mutable_data_ptr();
  const Input in(x, "x");
  const double count = (double)batch * (double)positions;
  const int64_t share = std::max<int64_t>(1, 32768 / std::max<int64_t>(1, batch * positions));
  torch::stable::parallel_for(0, channels, share, [&](int64_t begin, int64_t end) {
    constexpr int64_t kStatsPiece = 4096;  // read once from memory, twice from the cache
    alignas(64) float buffer[kStatsPiece];
    for (int64_t c = begin; c < end; ++c) {
      double seen = 0.0, middle = 0.0, squares = 0.0;
      for (int64_t b = 0; b < batch; ++b) {
        for (int64_t s = 0; s < positions; s += kStatsPiece) {
          const int64_t n = std::min(kStatsPiece, positions - s);
          const float* values = in.at((b * channels + c) * positions + s, n, buffer);
          // Mean and sum of squares of a piece, joined to those so far (Chan, Golub, LeVeque 1979).
          const float piece_mean = sum_run(values, n) / (float)n;
          const double piece_squares = squares_run(values, n, piece_mean), total = seen + (double)n;
          const double delta = piece_mean - middle;
          squares += piece_squares + delta * delta * seen * (double)n / total;
          middle += delta * (double)n / total;
          seen = total;
        }
      }
      means[c] = count > 0.0 ? (float)middle : NAN;
      vars[c] = count > 0.0 ? (float)(squares / count) : NAN;
    }
  });
  return {mean, var};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm_quantize(const Tensor& x, const Tensor& mean, const Tensor& rstd,
                                                               const std::optional<Tensor>& weight,
                                                               const std::optional<Tensor>& bias, bool relu,
                                                               const std::optional<Tensor>& ranges, int64_t groups,
                                                               int64_t bits, int64_t block_size, int64_t seed,
                                                               bool stochastic) {
  check_coding(bits, block_size);
  check_map(x, "x", groups);
  const int64_t channels = x.size(1), positions = x.size(2);
  const Layout layout = map_layout(x, groups, bits, block_size);
  std::optional<Tensor> given;
  if (!block_size) given = given_ranges(ranges, groups);
  const std::vector<float> m = channel_floats(mean, channels, 0.0f, "mean"), r = channel_floats(rstd, channels, 1.0f, "rstd"),
                           w = channel_floats(weight, channels, 1.0f, "weight"),
                           b = channel_floats(bias, channels, 0.0f, "bias");
  Tensor y = new_large(x, x.sizes(), x.scalar_type());
  Tensor mask = torch::stable::new_empty(x, {relu ? (layout.numel() + 7) / 8 : 0}, ScalarType::Byte);
  Tensor codes = torch::stable::new_empty(x, {layout.code_bytes()}, ScalarType::Byte);
  Tensor found = new_ranges(x, layout);
  Encoder encoder(layout, given ? (const float*)given->const_data_ptr() : nullptr, found.mutable_data_ptr(),
                  (uint8_t*)codes.mutable_data_ptr(), (uint64_t)seed, stochastic);
  const Reader reader(x, "x");
  const Output out(y);
  uint8_t* bits_out = (uint8_t*)mask.mutable_data_ptr();
  parallel_values(layout.numel(), encoder.unit(), [&](int64_t begin, int64_t end) {
    EncodeStream stream(encoder, begin);
    const int64_t piece = kPiece / encoder.unit() * encoder.unit();  // also a multiple of 8, as the mask needs
    alignas(64) float normalised[kPiece], buffer[kPiece];
    alignas(64) uint8_t positive[kPiece];
    each_piece(reader, begin, end, piece, [&](int64_t at, const float* values, int64_t n) {
      float* to = out.at(at, buffer);
      each_run(channels, positions, at, n, [&](int64_t c, int64_t i, int64_t length) {
        forward_run(values + i, length, {m[c], r[c], w[c], b[c]}, relu, normalised + i, to + i);
      });
      stream.push(normalised, n);
      out.done(at, to, n);
      if (relu) {
        out.reload(at, to, n);  // what rounding made 0 gets no gradient, as in torch
        positive_chunk(to, n, positive);
        pack_codes(positive, n, 1, bits_out + at / 8);
      }
    });
    stream.finish();
  });
  return {y, mask, codes, found};
}

std::tuple<Tensor, Tensor> batch_norm_backward_reduce(const Tensor& grad_, const Tensor& mask_, const Tensor& codes_,
                                                      const Tensor& ranges_, int64_t groups, int64_t bits,
                                                      int64_t block_size) {
  check_coding(bits, block_size);
  check_map(grad_, "grad", groups);
  const Tensor grad = torch::stable::contiguous(grad_), codes = torch::stable::contiguous(codes_),
               ranges = torch::stable::contiguous(ranges_), mask = torch::stable::contiguous(mask_);
  const int64_t batch = grad.size(0), channels = grad.size(1), positions = grad.size(2);
  const Layout layout = map_layout(grad, groups, bits, block_size);
  check_codes(codes, ranges, layout);
  const Decoder decoder(layout, (const uint8_t*)codes.const_data_ptr(), ranges.const_data_ptr());
  const MaskedGrad masked(grad, mask);
  Tensor sum_g = torch::stable::new_empty(grad, {channels}, ScalarType::Float);
  Tensor sum_gx = torch::stable::new_empty(grad, {channels}, ScalarType::Float);
  float* to_g = (float*)sum_g.mutable_data_ptr();
  float* to_gx = (float*)sum_gx.mutable_data_ptr();
  const int64_t share = std::max<int64_t>(1, 32768 / std::max<int64_t>(1, batch * positions));
  torch::stable::parallel_for(0, channels, share, [&](int64_t begin, int64_t end) {
    alignas(64) float normalised[kPiece], buffer[kPiece];
    for (int64_t c = begin; c < end; ++c) {
      double g = 0.0, gx = 0.0;
      for (int64_t b = 0; b < batch; ++b) {
        for (int64_t s = 0; s < positions; s += kPiece) {
          const int64_t n = std::min(kPiece, positions - s), index = (b * channels + c) * positions + s;
          decoder.run(index, n, normalised);
          products_run(masked.at(index, n, buffer), normalised, n, &g, &gx);
        }
      }
      to_g[c] = (float)g;
      to_gx[c] = (float)gx;
    }
  });
  return {sum_g, sum_gx};
}

Tensor batch_norm_backward(const Tensor& grad_, const Tensor& mask_, const Tensor& codes_, const Tensor& ranges_,
                           const Tensor& rstd, const std::optional<Tensor>& weight, const Tensor& mean_g,
                           const Tensor& mean_gx, int64_t groups, int64_t bits, int64_t block_size) {
  check_coding(bits, block_size);
  check_map(grad_, "grad", groups);
  const Tensor grad = torch::stable::contiguous(grad_), codes = torch::stable::contiguous(codes_),
               ranges = torch::stable::contiguous(ranges_), mask = torch::stable::contiguous(mask_);
  const int64_t channels = grad.size(1), positions = grad.size(2);
  const Layout layout = map_layout(grad, groups, bits, block_size);
  check_codes(codes, ranges, layout);
  const std::vector<float> mg = channel_floats(mean_g, channels, 0.0f, "mean_g"),
                           mgx = channel_floats(mean_gx, channels, 0.0f, "mean_gx"),
                           w = channel_floats(weight, channels, 1.0f, "weight");
  std::vector<float> scale = channel_floats(rstd, channels, 1.0f, "rstd");
  for (int64_t c = 0; c < channels; ++c) scale[c] *= w[c];
  const Decoder decoder(layout, (const uint8_t*)codes.const_data_ptr(), ranges.const_data_ptr());
  const MaskedGrad masked(grad, mask);
  Tensor gx = new_large(grad, grad.sizes(), grad.scalar_type());
  const Output out(gx);
  parallel_values(layout.numel(), 8, [&](int64_t begin, int64_t end) {
    alignas(64) float normalised[kPiece], buffer[kPiece], result[kPiece];
    for (int64_t at = begin; at < end; at += kPiece) {
      const int64_t n = std::min(kPiece, end - at);
      decoder.run(at, n, normalised);
      const float* g = masked.at(at, n, buffer);
      float* to = out.at(at, result);
      each_run(channels, positions, at, n, [&](int64_t c, int64_t i, int64_t length) {
        backward_run(g + i, normalised + i, length, mg[c], mgx[c], scale[c], to + i);
      });
      out.done(at, to, n);
    }
  });
  return gx;
}

}  // namespace
}  // namespace mesa

STABLE_TORCH_LIBRARY_IMPL(mesa_seg, CPU, m) {
  m.impl("batch_norm_stats", TORCH_BOX(&mesa::batch_norm_stats));
  m.impl("batch_norm_quantize", TORCH_BOX(&mesa::batch_norm_quantize));
  m.impl("batch_norm_backward_reduce", TORCH_BOX(&mesa::batch_norm_backward_reduce));
  m.impl("batch_norm_backward", TORCH_BOX(&mesa::batch_norm_backward));
}
