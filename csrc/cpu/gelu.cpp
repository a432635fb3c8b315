// GELU with its input kept as codes.
#include "../common/gelu.h"

#include "clones.h"
#include "elementwise.h"

namespace mesa {
namespace {

enum class Form { erf, tanh };

MESA_CLONES void gelu_chunk(const float* __restrict x, int64_t n, Form form, float* __restrict y) {
  if (form == Form::tanh) {
    for (int64_t i = 0; i < n; ++i) y[i] = gelu_tanh(x[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = gelu(x[i]);
  }
}

MESA_CLONES void slope_chunk(const float* __restrict x, int64_t n, Form form, float* __restrict slope) {
  if (form == Form::tanh) {
    for (int64_t i = 0; i < n; ++i) slope[i] = gelu_tanh_slope(x[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) slope[i] = gelu_slope(x[i]);
  }
}

MESA_CLONES void multiply_chunk(const float* __restrict a, int64_t n, float* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] *= a[i];
}

// Tables of `entries` values, one after the other; each serves `length` neighbouring values, then the next one does.
struct Tables {
  const float* values;
  int64_t entries, count, length;
};

// The tables' values for n codes, times `factors` if there are any. The first `left` codes use table number `table`.
MESA_CLONES void lookup_chunk(const uint8_t* __restrict codes, int64_t n, Tables tables, int64_t table, int64_t left,
                              const float* __restrict factors, float* __restrict out) {
  for (int64_t i = 0; i < n; left = tables.length) {
    const float* __restrict from = tables.values + table * tables.entries;
    const int64_t end = i + (left < n - i ? left : n - i);
    if (factors) {
      for (; i < end; ++i) out[i] = from[codes[i]] * factors[i];
    } else {
      for (; i < end; ++i) out[i] = from[codes[i]];
    }
    table = table + 1 == tables.count ? 0 : table + 1;
  }
}

// A function of h (GELU or its derivative) for codes of h. Where codes repeat often, it is evaluated once for each code of a
// range, and looked up.
class Rebuilt {
 public:
  using Function = void (*)(const float*, int64_t, Form, float*);

  Rebuilt(const Layout& layout, const Tensor& codes, const Tensor& ranges, Form form, Function function)
      : layout_(layout), codes_(torch::stable::contiguous(codes)), ranges_(torch::stable::contiguous(ranges)),
        packed_((const uint8_t*)codes_.const_data_ptr()), decoder_(layout, packed_, ranges_.const_data_ptr()),
        form_(form), function_(function), entries_(int64_t{1} << layout.bits) {
    const int64_t tabled = layout.block_size ? layout.block_size : layout.outer * layout.inner;
    if (tabled < 2 * entries_) return;
    tables_ = true;
    if (layout.block_size) return;
    values_.resize((size_t)(layout.groups * entries_));
    for (int64_t g = 0; g < layout.groups; ++g) evaluate(g * layout.inner, &values_[(size_t)(g * entries_)]);
  }

  // n <= kPiece values from linear index `first` on, times `factors` unless these are null.
  void run(int64_t first, int64_t n, const float* factors, float* out) const {
    alignas(64) float values[kPiece + 2 * kMostEntries];
    if (!tables_) {
      decoder_.run(first, n, values);
      function_(values, n, form_, out);
      if (factors) multiply_chunk(factors, n, out);
      return;
    }
    alignas(64) uint8_t unpacked[kPiece];
    const uint8_t* codes = packed_ + first;
    if (layout_.bits != 8) {
      decoder_.codes(first, n, unpacked);
      codes = unpacked;
    }
    if (layout_.block_size) {
      const int64_t size = layout_.block_size, begin = first / size, count = (first + n - 1) / size + 1 - begin;
      for (int64_t b = 0; b < count; ++b) steps((begin + b) * size, values + b * entries_);
      alignas(64) float results[kPiece + 2 * kMostEntries];
      function_(values, count * entries_, form_, results);
      lookup_chunk(codes, n, {results, entries_, count, size}, 0, size - first % size, factors, out);
    } else {
      lookup_chunk(codes, n, {values_.data(), entries_, layout_.groups, layout_.inner},
                   first / layout_.inner % layout_.groups, layout_.inner - first % layout_.inner, factors, out);
    }
  }

 private:
  static constexpr int64_t kMostEntries = 256;

  // What the codes of the range that `index` lies in stand for.
  void steps(int64_t index, float* values) const {
    const Step step = decoder_.step_of(index);
    for (int64_t code = 0; code < entries_; ++code) values[code] = decode((uint32_t)code, step);
  }
  void evaluate(int64_t index, float* results) const {
    float values[kMostEntries];
    steps(index, values);
    function_(values, entries_, form_, results);
  }

  Layout layout_;
  Tensor codes_, ranges_;  // held: they may be copies
  const uint8_t* packed_;
  Decoder decoder_;
  Form form_;
  Function function_;
  int64_t entries_;
  bool tables_ = false;
  std::vector<float> values_;  // head: [groups, entries]
};

std::tuple<Tensor, Tensor, Tensor> gelu_quantize(const Tensor& x, const std::optional<Tensor>& ranges, int64_t bits,
                                                 int64_t block_size, int64_t seed, bool stochastic, bool tanh) {
  check_coding(bits, block_size);
  const Reader reader(x, "x");
  const Layout layout{x.size(0), x.size(1), x.size(2), (int)bits, block_size};
  std::optional<Tensor> given;
  if (!block_size) given = given_ranges(ranges, layout.groups);
  Tensor y = new_large(x, x.sizes(), x.scalar_type());
  Tensor codes = torch::stable::new_empty(x, {layout.code_bytes()}, ScalarType::Byte);
  Tensor found = new_ranges(x, layout);
  Encoder encoder(layout, given ? (const float*)given->const_data_ptr() : nullptr, found.mutable_data_ptr(),
                  (uint8_t*)codes.mutable_data_ptr(), (uint64_t)seed, stochastic);
  const Output out(y);
  parallel_values(layout.numel(), encoder.unit(), [&](int64_t begin, int64_t end) {
    EncodeStream stream(encoder, begin);
    const int64_t piece = kPiece / encoder.unit() * encoder.unit();
    alignas(64) float buffer[kPiece];
    each_piece(reader, begin, end, piece, [&](int64_t at, const float* values, int64_t n) {
      stream.push(values, n);
      float* to = out.at(at, buffer);
      gelu_chunk(values, n, tanh ? Form::tanh : Form::erf, to);
      out.done(at, to, n);
    });
    stream.finish();
  });
  return {y, codes, found};
}

Tensor gelu_backward(const Tensor& grad, const Tensor& codes, const Tensor& ranges, int64_t bits, int64_t block_size,
                     bool tanh) {
  check_coding(bits, block_size);
  const Reader reader(grad, "grad");
  const Layout layout{grad.size(0), grad.size(1), grad.size(2), (int)bits, block_size};
  check_codes(codes, ranges, layout);
  Tensor gx = new_large(grad, grad.sizes(), grad.scalar_type());
  if (layout.numel() == 0) return gx;
  const Rebuilt slopes(layout, codes, ranges, tanh ? Form::tanh : Form::erf, slope_chunk);
  const Output out(gx);
  parallel_values(layout.numel(), 8, [&](int64_t begin, int64_t end) {
    alignas(64) float buffer[kPiece];
    each_piece(reader, begin, end, kPiece, [&](int64_t at, const float* values, int64_t n) {
      float* to = out.at(at, buffer);
      slopes.run(at, n, values, to);
      out.done(at, to, n);
    });
  });
  return gx;
}

Tensor gelu_dequantize(const Tensor& codes, const Tensor& ranges, int64_t outer, int64_t groups, int64_t inner,
                       int64_t bits, int64_t block_size, bool tanh, ScalarType dtype) {
  check_coding(bits, block_size);
  const Layout layout{outer, groups, inner, (int)bits, block_size};
  check_codes(codes, ranges, layout);
  dtype_of(dtype, "dtype");
  Tensor y = new_large(codes, {outer, groups, inner}, dtype);
  if (layout.numel() == 0) return y;
  const Rebuilt values(layout, codes, ranges, tanh ? Form::tanh : Form::erf, gelu_chunk);
  const Output out(y);
  parallel_values(layout.numel(), 8, [&](int64_t begin, int64_t end) {
    alignas(64) float buffer[kPiece];
    for (int64_t at = begin; at < end; at += kPiece) {
      const int64_t n = std::min(kPiece, end - at);
      float* to = out.at(at, buffer);
      values.run(at, n, nullptr, to);
      out.done(at, to, n);
    }
  });
  return y;
}

}  // namespace
}  // namespace mesa

STABLE_TORCH_LIBRARY_IMPL(mesa_seg, CPU, m) {
  m.impl("gelu_quantize", TORCH_BOX(&mesa::gelu_quantize));
  m.impl("gelu_backward", TORCH_BOX(&mesa::gelu_backward));
  m.impl("gelu_dequantize", TORCH_BOX(&mesa::gelu_dequantize));
}
