// Vectors of MESA_LANES floats and what this project computes with them. No include guard: for kernels that
// each_instruction_set.h includes.
#define MESA_INLINE static inline __attribute__((always_inline)) MESA_TARGET

typedef float Vec __attribute__((vector_size(MESA_LANES * 4)));
typedef int32_t VecInt __attribute__((vector_size(MESA_LANES * 4)));
typedef float VecAny __attribute__((vector_size(MESA_LANES * 4), aligned(4), may_alias));

MESA_INLINE Vec load(const float* p) { return *reinterpret_cast<const VecAny*>(p); }
MESA_INLINE void store(float* p, Vec v) { *reinterpret_cast<VecAny*>(p) = v; }
MESA_INLINE Vec splat(float x) { return x - Vec{}; }

// In halves, in this order for every width from 4 to 16: faster than one lane after the other.
MESA_INLINE float sum_of(Vec v) {
  float lane[MESA_LANES];
  store(lane, v);
  for (int half = MESA_LANES / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  return lane[0];
}
MESA_INLINE float max_of(Vec v) {
  float lane[MESA_LANES];
  store(lane, v);
  for (int half = MESA_LANES / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] = lane[i + half] > lane[i] ? lane[i + half] : lane[i];
  return lane[0];
}

// exp(x) for x <= 0, to about one unit in the last place; at -87.3 and below the smallest normal number; NaN stays NaN.
// n = round(x / ln 2); e^(x - n ln 2) by a polynomial fitted to relative error 3e-9 on [-ln 2 / 2, ln 2 / 2]; 2^n by its bits.
MESA_INLINE Vec exp_of(Vec x) {
  x = MESA_MAX(splat(-87.3f), x);
  const Vec shifted = MESA_FMA(x, splat(1.44269504f), splat(12582912.0f));  // 1.5 * 2^23: the integer part is in the low bits
  const Vec n = shifted - splat(12582912.0f);
  Vec r = MESA_FMA(n, splat(-0.693145751953125f), x);  // ln 2 in two parts, the first exact in 15 bits
  r = MESA_FMA(n, splat(-1.42860682e-6f), r);
  Vec p = MESA_FMA(r, splat(1.381446694e-3f), splat(8.368780515e-3f));
  p = MESA_FMA(p, r, splat(4.166839422e-2f));
  p = MESA_FMA(p, r, splat(1.666652011e-1f));
  p = MESA_FMA(p, r, splat(4.999999341e-1f));
  p = MESA_FMA(p, r, splat(1.0f));
  p = MESA_FMA(p, r, splat(1.0f));
  return p * (Vec)(((VecInt)shifted << 23) + 0x3f800000);
}
