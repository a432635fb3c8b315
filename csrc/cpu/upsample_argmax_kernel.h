// One tile of one output row; included by each_instruction_set.h. Classes are the contiguous axis of every buffer.
#include "vector.h"

typedef int32_t IntAny __attribute__((vector_size(MESA_LANES * 4), aligned(4), may_alias));

// Row of the tile's source columns: to[u] = sum over taps of weight * rows[tap][columns[u]].
MESA_TARGET static void mix_rows(const float* const* rows, const float* weights, int taps, const int32_t* columns,
                                 int64_t count, int64_t lanes, float* to) {
  for (int64_t u = 0; u < count; ++u, to += lanes) {
    const int64_t at = columns[u] * lanes;
    for (int64_t c = 0; c < lanes; c += MESA_LANES) {
      Vec value = load(rows[0] + at + c) * weights[0];
      for (int t = 1; t < taps; ++t) value = MESA_FMA(load(rows[t] + at + c), splat(weights[t]), value);
      store(to + c, value);
    }
  }
}

// Class c of one pixel.
MESA_INLINE Vec pixel_value(const float* row, const Taps& taps, int64_t x, int64_t c, int64_t lanes) {
  const int32_t* index = taps.index + x * taps.stride;
  const float* weight = taps.weight + x * taps.stride;
  Vec value = load(row + index[0] * lanes + c) * weight[0];
  for (int t = 1; t < taps.count[x]; ++t)
    value = MESA_FMA(load(row + index[t] * lanes + c), splat(weight[t]), value);
  return value;
}

struct Best {
  Vec value;
  VecInt at;  // first class of the vector it was found in
};
MESA_INLINE void improve(Best& best, Vec value, int64_t c) {
  const VecInt better = value > best.value;
  best.at = better ? (VecInt{} + (int32_t)c) : best.at;
  best.value = MESA_MAX(value, best.value);
}
MESA_INLINE int64_t name(const Best& best) {
  const float peak = max_of(best.value);
  int32_t at[MESA_LANES];
  float value[MESA_LANES];
  *reinterpret_cast<IntAny*>(at) = best.at;
  store(value, best.value);
  int64_t found = INT64_MAX;
  for (int i = 0; i < MESA_LANES; ++i)
    if (value[i] == peak && at[i] + i < found) found = at[i] + i;
  return found == INT64_MAX ? 0 : found;
}

// Labels of pixels [start, stop) from the row of one map.
MESA_TARGET static void label_values(const float* row, const Taps& taps, int64_t start, int64_t stop, int64_t lanes,
                                     int64_t* labels) {
  for (int64_t x = start; x < stop; ++x) {
    Best best = {splat(-INFINITY), VecInt{}};
    for (int64_t c = 0; c < lanes; c += MESA_LANES) improve(best, pixel_value(row, taps, x, c, lanes), c);
    labels[x] = name(best);
  }
}

// sums [stop - start, lanes] += the map's values, or their softmax.
MESA_TARGET static void add_map(const float* row, const Taps& taps, int64_t start, int64_t stop, int64_t lanes, bool softmax,
                                float* power, float* sums) {
  for (int64_t x = start; x < stop; ++x, sums += lanes) {
    Vec top = splat(-INFINITY), total = Vec{};
    for (int64_t c = 0; c < lanes; c += MESA_LANES) {
      const Vec value = pixel_value(row, taps, x, c, lanes);
      store(power + c, value);
      top = MESA_MAX(value, top);
    }
    float factor = 1.0f;
    if (softmax) {
      const Vec peak = splat(max_of(top));
      for (int64_t c = 0; c < lanes; c += MESA_LANES) {
        const Vec value = exp_of(load(power + c) - peak);
        store(power + c, value);
        total += value;
      }
      factor = 1.0f / sum_of(total);
    }
    for (int64_t c = 0; c < lanes; c += MESA_LANES)
      store(sums + c, MESA_FMA(load(power + c), splat(factor), load(sums + c)));
  }
}

MESA_TARGET static void label_sums(const float* sums, int64_t start, int64_t stop, int64_t lanes, int64_t* labels) {
  for (int64_t x = start; x < stop; ++x, sums += lanes) {
    Best best = {splat(-INFINITY), VecInt{}};
    for (int64_t c = 0; c < lanes; c += MESA_LANES) improve(best, load(sums + c), c);
    labels[x] = name(best);
  }
}

#undef MESA_INLINE
