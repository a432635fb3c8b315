// One band of one image; included by each_instruction_set.h. Classes are the contiguous axis of every buffer.
#include "vector.h"

// Pixels between the same four sources, N at once so that each source and each gradient is loaded once for all.
// a, b: classes of the left and the right column in this output row; grad_a, grad_b: what their gradients are added to.
template <int N>
MESA_INLINE void pixels(const Problem& p, const float* a, const float* b, float* grad_a, float* grad_b, const Pixel* pixel,
                        float* const* z, float* losses, Sums& sums) {
  Vec lower[N], upper[N], top[N];
  for (int k = 0; k < N; ++k) {
    lower[k] = splat(p.column_taps[pixel[k].column].lower);
    upper[k] = splat(p.column_taps[pixel[k].column].upper);
    top[k] = splat(-INFINITY);
  }
  for (int64_t c = 0; c < p.lanes; c += MESA_LANES) {
    const Vec left = load(a + c), right = load(b + c);
    for (int k = 0; k < N; ++k) {
      const Vec value = MESA_FMA(right, upper[k], left * lower[k]);
      store(z[k] + c, value);
      top[k] = MESA_MAX(value, top[k]);
    }
  }
  float peak[N], own[N];
  Vec total[N];
  for (int k = 0; k < N; ++k) {
    peak[k] = max_of(top[k]);
    own[k] = z[k][pixel[k].label];
    sums.correct += own[k] == peak[k] && is_first(z[k], pixel[k].label, peak[k]);
    top[k] = splat(peak[k]);
    total[k] = Vec{};
  }
  for (int64_t c = 0; c < p.lanes; c += MESA_LANES)
    for (int k = 0; k < N; ++k) {
      const Vec power = exp_of(load(z[k] + c) - top[k]);
      store(z[k] + c, power);
      total[k] += power;
    }
  for (int k = 0; k < N; ++k) {
    const float sum = sum_of(total[k]);
    const float loss = pixel[k].weight * (logf(sum) + (peak[k] - own[k]));
    sums.loss += loss;
    if (losses) losses[pixel[k].column] = loss;
    const float factor = pixel[k].weight / sum;
    total[k] = splat(factor);
    lower[k] *= total[k];
    upper[k] *= total[k];
  }
  if (!grad_a) return;
  for (int64_t c = 0; c < p.lanes; c += MESA_LANES) {
    Vec left = load(grad_a + c), right = load(grad_b + c);
    for (int k = 0; k < N; ++k) {
      const Vec power = load(z[k] + c);
      left = MESA_FMA(power, lower[k], left);
      right = MESA_FMA(power, upper[k], right);
    }
    store(grad_a + c, left);
    store(grad_b + c, right);
  }
  for (int k = 0; k < N; ++k) {
    const Tap& tap = p.column_taps[pixel[k].column];
    grad_a[pixel[k].label] -= pixel[k].weight * tap.lower;
    grad_b[pixel[k].label] -= pixel[k].weight * tap.upper;
  }
}

// to = lower * a + upper * b, n floats.
MESA_INLINE void mix(float* to, const float* a, const float* b, float lower, float upper, int64_t n) {
  for (int64_t i = 0; i < n; i += MESA_LANES) store(to + i, MESA_FMA(load(b + i), splat(upper), load(a + i) * lower));
}

// a += lower * from, b += upper * from, n floats; from is zero afterwards.
MESA_INLINE void share(float* from, float* a, float* b, float lower, float upper, int64_t n) {
  for (int64_t i = 0; i < n; i += MESA_LANES) {
    const Vec value = load(from + i);
    store(a + i, MESA_FMA(value, splat(lower), load(a + i)));
    store(b + i, MESA_FMA(value, splat(upper), load(b + i)));
    store(from + i, Vec{});
  }
}

// The output rows whose upper source row is in [band.first, band.last). source and gradient: rows band.first to band.last
// of p.width + 1 columns of p.lanes classes, both inclusive. Columns go in tiles, so that what a tile needs stays in the
// first-level cache over all rows of the band.
MESA_TARGET static void run_band(const Problem& p, const Band& band, const float* source, float* gradient, Scratch& s,
                                 Sums& sums) {
  const int64_t row_size = (p.width + 1) * p.lanes;
  for (int64_t left = 0; left < p.width; left += p.tile) {
    const int64_t right = left + p.tile < p.width ? left + p.tile : p.width;
    const int64_t start = p.column_begin[left], stop = p.column_begin[right], size = (right - left + 1) * p.lanes;
    if (start == stop) continue;
    for (int64_t y = p.row_begin[band.first]; y < p.row_begin[band.last]; ++y) {
      const Tap row = p.row_taps[y];
      const int64_t at = (row.first - band.first) * row_size + left * p.lanes;
      if (!p.read_row(p, band.image, y, start, stop, s.pixels, s.ends, sums)) continue;
      mix(s.row, source + at, source + at + row_size, row.lower, row.upper, size);
      float* losses = p.loss ? p.loss + (band.image * p.rows + y) * p.columns : nullptr;
      const Pixel* pixel = s.pixels;
      for (int64_t x = left; x < right; ++x) {
        const Pixel* end = s.pixels + s.ends[p.column_begin[x + 1] - start];
        const float* a = s.row + (x - left) * p.lanes;
        float* g = gradient ? s.row_gradient + (x - left) * p.lanes : nullptr;
        float* h = gradient ? g + p.lanes : nullptr;
        for (; pixel + 4 <= end; pixel += 4) pixels<4>(p, a, a + p.lanes, g, h, pixel, s.values, losses, sums);
        for (; pixel < end; ++pixel) pixels<1>(p, a, a + p.lanes, g, h, pixel, s.values, losses, sums);
      }
      if (gradient) share(s.row_gradient, gradient + at, gradient + at + row_size, row.lower, row.upper, size);
    }
  }
}

#undef MESA_INLINE
