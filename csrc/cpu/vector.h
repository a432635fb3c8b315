// Vectors of MESA_LANES floats and what this project computes with them. No include guard: for kernels that
// each_instruction_set.h includes.
#define MESA_INLINE static inline __attribute__((always_inline)) MESA_TARGET

typedef float Vec __attribute__((vector_size(MESA_LANES * 4)));
typedef int32_t VecInt __attribute__((vector_size(MESA_LANES * 4)));
typedef float VecAny __attribute__((vector_size(MESA_LANES * 4), aligned(4), may_alias));

MESA_INLINE Vec load(const float* p) { return *reinterpret_cast<const VecAny*>(p); }
MESA_INLINE void store(float* p, Vec v) { *reinterpret_cast<VecAny*>(p) = v; }
MESA_INLINE Vec splat(float x) { return x - Vec{}; }

// Sum and maximum over the lanes: halves onto each other, in registers; the same order for every width from 4 to 16.
typedef float Vec4 __attribute__((vector_size(16)));
#if MESA_LANES == 16
typedef float Vec8 __attribute__((vector_size(32)));
#define MESA_LOW8(v) __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7)
#define MESA_HIGH8(v) __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15)
#endif
#define MESA_LOW4(v) __builtin_shufflevector(v, v, 0, 1, 2, 3)
#define MESA_HIGH4(v) __builtin_shufflevector(v, v, 4, 5, 6, 7)
MESA_INLINE float sum_of(Vec v) {
#if MESA_LANES == 16
  const Vec8 half = MESA_LOW8(v) + MESA_HIGH8(v);
  const Vec4 s = MESA_LOW4(half) + MESA_HIGH4(half);
#elif MESA_LANES == 8
  const Vec4 s = MESA_LOW4(v) + MESA_HIGH4(v);
#else
  const Vec4 s = v;
#endif
  return (s[0] + s[2]) + (s[1] + s[3]);
}
MESA_INLINE float max_of(Vec v) {
#if MESA_LANES == 16
  const Vec8 half = MESA_HIGH8(v) > MESA_LOW8(v) ? MESA_HIGH8(v) : MESA_LOW8(v);
  const Vec4 s = MESA_HIGH4(half) > MESA_LOW4(half) ? MESA_HIGH4(half) : MESA_LOW4(half);
#elif MESA_LANES == 8
  const Vec4 s = MESA_HIGH4(v) > MESA_LOW4(v) ? MESA_HIGH4(v) : MESA_LOW4(v);
#else
  const Vec4 s = v;
#endif
  const float a = s[2] > s[0] ? s[2] : s[0], b = s[3] > s[1] ? s[3] : s[1];
  return b > a ? b : a;
}
#undef MESA_LOW8
#undef MESA_HIGH8
#undef MESA_LOW4
#undef MESA_HIGH4

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
