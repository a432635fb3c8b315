#pragma once
// Sixteen float32 lanes in the compiler's own vector type, for sums: they are added in one order whatever the instruction
// set, and GCC would not make vectors of a float sum by itself. Addition and multiplication only: GCC turns comparisons and
// conversions of vectors wider than the machine's into scalar code; loops without sums do well as plain loops.
#include <stdint.h>
#include <string.h>
namespace mesa {

#define MESA_INLINE inline __attribute__((always_inline))

constexpr int64_t kWidth = 16;
typedef float F16 __attribute__((vector_size(64)));

MESA_INLINE F16 load(const float* p) {
  F16 v;
  memcpy(&v, p, sizeof v);
  return v;
}
// The first n < 16 values, the other lanes 0.
MESA_INLINE F16 load(const float* p, int64_t n) {
  float lanes[kWidth] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
MESA_INLINE void store(float* p, F16 v) { memcpy(p, &v, sizeof v); }
MESA_INLINE void store(float* p, F16 v, int64_t n) {
  float lanes[kWidth];
  store(lanes, v);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

MESA_INLINE float sum_lanes(F16 v) {
  typedef float F8 __attribute__((vector_size(32)));
  typedef float F4 __attribute__((vector_size(16)));
  F8 eight[2];
  F4 four[2];
  memcpy(eight, &v, sizeof v);
  eight[0] += eight[1];
  memcpy(four, eight, sizeof eight[0]);
  four[0] += four[1];
  return (four[0][0] + four[0][2]) + (four[0][1] + four[0][3]);
}

// Σ x
MESA_INLINE float sum(const float* x, int64_t n) {
  F16 even = {}, odd = {};
  int64_t i = 0;
  for (; i + 2 * kWidth <= n; i += 2 * kWidth) {
    even += load(x + i);
    odd += load(x + i + kWidth);
  }
  if (i + kWidth <= n) {
    even += load(x + i);
    i += kWidth;
  }
  if (i < n) odd += load(x + i, n - i);
  return sum_lanes(even + odd);
}

// Σ (x - middle)²
MESA_INLINE float sum_squares(const float* x, int64_t n, float middle) {
  F16 even = {}, odd = {};
  int64_t i = 0;
  for (; i + 2 * kWidth <= n; i += 2 * kWidth) {
    const F16 a = load(x + i) - middle, b = load(x + i + kWidth) - middle;
    even += a * a;
    odd += b * b;
  }
  if (i + kWidth <= n) {
    const F16 a = load(x + i) - middle;
    even += a * a;
    i += kWidth;
  }
  if (i < n) {
    float rest[kWidth] = {};
    for (int64_t l = 0; i + l < n; ++l) rest[l] = x[i + l] - middle;
    const F16 a = load(rest);
    odd += a * a;
  }
  return sum_lanes(even + odd);
}

}  // namespace mesa
