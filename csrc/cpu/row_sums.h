#pragma once
// Sums of rows in the order of csrc/common/row_order.h. Eight lanes a vector: wider ones would be shuffled by scalar
// code where the machine's are not as wide.
#include <algorithm>

#include "../common/row_order.h"
#include "lanes.h"
namespace mesa {

typedef float F8 __attribute__((vector_size(32)));
typedef int32_t I8 __attribute__((vector_size(32)));

// What is added for one value: itself, or its squared distance from the mean.
template <bool SQUARES>
MESA_INLINE F8 row_terms(const float* x, float mean) {
  F8 v;
  memcpy(&v, x, sizeof v);
  if (!SQUARES) return v;
  v -= mean;
  return v * v;
}
#if defined(__clang__)
#define MESA_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MESA_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, I8{__VA_ARGS__})
#endif

// Eight vectors of accumulators to the sum of each.
MESA_INLINE F8 sum_eights(const F8 (&a)[8]) {
  F8 two[4], four[2];
  for (int i = 0; i < 4; ++i) {
    const F8 u = a[2 * i], v = a[2 * i + 1];
    two[i] = MESA_SHUFFLE(u, v, 0, 1, 8, 9, 4, 5, 12, 13) + MESA_SHUFFLE(u, v, 2, 3, 10, 11, 6, 7, 14, 15);
  }
  for (int i = 0; i < 2; ++i) {
    const F8 u = two[2 * i], v = two[2 * i + 1];
    four[i] = MESA_SHUFFLE(u, v, 0, 2, 8, 10, 4, 6, 12, 14) + MESA_SHUFFLE(u, v, 1, 3, 9, 11, 5, 7, 13, 15);
  }
  const F8 u = four[0], v = four[1];
  return MESA_SHUFFLE(u, v, 0, 1, 2, 3, 8, 9, 10, 11) + MESA_SHUFFLE(u, v, 4, 5, 6, 7, 12, 13, 14, 15);
}

// Σ x or Σ (x - mean)² of 64/WIDTH rows that are `pitch` values apart.
template <int WIDTH, bool SQUARES>
MESA_INLINE void sum_some_rows(const float* x, int64_t pitch, int64_t channels, int64_t length, const float* means,
                               float* sums) {
  constexpr int64_t kRows = 64 / WIDTH, kEach = 8 / kRows;  // vectors a row
  const auto value = [&](int64_t i, int64_t c) { return x + i / kEach * pitch + c + i % kEach * 8; };
  const auto mean = [&](int64_t i) { return SQUARES ? means[i / kEach] : 0.0f; };
  for (int64_t begin = 0; begin < channels; begin += length) {
    const int64_t end = std::min(channels, begin + length);
    int64_t c = begin;
    F8 a[8];
    const bool whole = c + WIDTH <= end;
#pragma GCC unroll 8
    for (int64_t i = 0; i < 8; ++i) a[i] = whole ? row_terms<SQUARES>(value(i, c), mean(i)) : F8{};
    for (c += whole ? WIDTH : 0; c + WIDTH <= end; c += WIDTH) {
#pragma GCC unroll 8
      for (int64_t i = 0; i < 8; ++i) a[i] += row_terms<SQUARES>(value(i, c), mean(i));
    }
    if (c < end) {
      float rest[64] = {};
      for (int64_t i = 0; i < 8; i += kEach)
        for (int64_t k = 0; k < end - c; ++k) {
          const float v = value(i, c)[k] - mean(i);
          rest[8 * i + k] = SQUARES ? v * v : v;
        }
#pragma GCC unroll 8
      for (int64_t i = 0; i < 8; ++i) a[i] += row_terms<false>(rest + 8 * i, 0.0f);
    }
    const F8 eights = sum_eights(a);
    float s[8];
    memcpy(s, &eights, sizeof s);
    for (int64_t half = kEach / 2; half > 0; half /= 2)
      for (int64_t row = 0; row < 8; row += kEach)
        for (int64_t e = row; e < row + half; ++e) s[e] += s[e + half];
    for (int64_t row = 0; row < kRows; ++row) sums[row] = begin ? sums[row] + s[row * kEach] : s[row * kEach];
  }
}

// Σ x or Σ (x - mean)² of each row.
template <int WIDTH, bool SQUARES>
MESA_INLINE void sum_rows(const float* x, int64_t rows, int64_t channels, int64_t length, const float* means,
                          float* sums) {
  constexpr int64_t kRows = 64 / WIDTH;
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows)
    sum_some_rows<WIDTH, SQUARES>(x + r * channels, channels, channels, length, means + r, sums + r);
  for (; r < rows; ++r) {  // one row in the place of all
    float same[kRows], out[kRows] = {};
    std::fill_n(same, kRows, SQUARES ? means[r] : 0.0f);
    sum_some_rows<WIDTH, SQUARES>(x + r * channels, 0, channels, length, same, out);
    sums[r] = out[0];
  }
}
template <bool SQUARES>
MESA_INLINE void sum_rows(const float* x, int64_t rows, int64_t channels, const RowOrder& order, const float* means,
                          float* sums) {
  switch (order.width) {
    case 64: return sum_rows<64, SQUARES>(x, rows, channels, order.length, means, sums);
    case 32: return sum_rows<32, SQUARES>(x, rows, channels, order.length, means, sums);
    case 16: return sum_rows<16, SQUARES>(x, rows, channels, order.length, means, sums);
    default: return sum_rows<8, SQUARES>(x, rows, channels, order.length, means, sums);
  }
}

}  // namespace mesa
