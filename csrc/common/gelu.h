#pragma once
// GELU and its derivative, shared by the CPU and the CUDA kernels. No branches and no library calls: a compiler makes
// vectors of a loop over these. No code depends on them, so a GPU may fuse and divide fast: half the instructions.
#include "host_device.h"
#include "quantize.h"
namespace mesa {

MESA_HD float multiply_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
MESA_HD float quotient(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdividef(a, b);  // 0 where b > 2^126, which is where no quotient counts
#else
  return a / b;
#endif
}

// exp(z) for z <= 0, to 1e-7 relative; 0 below -87. NaN stays.
MESA_HD float exp_negative(float exponent) {
  const float z = exponent < -87.0f ? -87.0f : exponent;
  const float n = multiply_add(z, 1.44269504f, 12582912.0f) - 12582912.0f;                  // z/ln 2 to the nearest integer
  const float r = multiply_add(n, 2.12194440e-4f, multiply_add(n, -0.693359375f, z));  // z - n·ln 2, ln 2 in two parts
  float p = multiply_add(r, 0.00138366369f, 0.008374981f);
  p = multiply_add(p, r, 0.0416682381f);
  p = multiply_add(p, r, 0.166664182f);
  p = multiply_add(p, r, 0.49999992f);
  p = multiply_add(p, r, 1.0f);
  p = multiply_add(p, r, 1.0f);
  p *= bits_float((uint32_t)((int32_t)n + 127) << 23);
  return exponent < -87.0f ? 0.0f : p;
}

// The share of x that GELU lets through: Φ(x), the normal distribution's. Within [-5.5, 5.5] as ½ + x·P(x²)/Q(x²), fitted
// here to 1.2e-8; 0 and 1 outside. x·Φ(x) differs from the exact value by at most 3e-7·|x|, as torch's does.
MESA_HD float gelu_share(float x) {
  const float t = x * x;
  float p = multiply_add(t, 2.15803148e-08f, 6.3741381e-06f);
  p = multiply_add(p, t, 0.000179391115f);
  p = multiply_add(p, t, 0.00474081154f);
  p = multiply_add(p, t, 0.0349408999f);
  p = multiply_add(p, t, 0.398942206f);
  float q = multiply_add(t, 1.16495938e-06f, 7.67668272e-05f);
  q = multiply_add(q, t, 0.00194453755f);
  q = multiply_add(q, t, 0.0292605359f);
  q = multiply_add(q, t, 0.254249317f);
  q = multiply_add(q, t, 1.0f);
  float share = multiply_add(x, quotient(p, q), 0.5f);
  share = x < -5.5f ? 0.0f : share;
  return x > 5.5f ? 1.0f : share;
}
MESA_HD float gelu(float x) { return x * gelu_share(x); }
// Φ(x) + x·φ(x)
MESA_HD float gelu_slope(float x) { return multiply_add(x, exp_negative(x * x * -0.5f) * 0.3989422804f, gelu_share(x)); }

// The tanh form, ½x(1 + tanh u) with u = √(2/π)·(x + 0.044715·x³), is x·σ(2u).
struct TanhTerms {
  float share, product, square;  // σ(2u), σ(2u)·(1 - σ(2u)), x²
};
MESA_HD TanhTerms gelu_tanh_terms(float x) {
  TanhTerms terms;
  terms.square = x * x;
  const float twice = x * multiply_add(terms.square, 0.044715f * 1.5957691216f, 1.5957691216f);
  const float e = exp_negative(twice < 0.0f ? twice : -twice);
  const float larger = quotient(1.0f, e + 1.0f), smaller = e * larger;
  terms.share = twice < 0.0f ? smaller : larger;
  terms.product = smaller * larger;
  return terms;
}
MESA_HD float gelu_tanh(float x) { return x * gelu_tanh_terms(x).share; }
MESA_HD float gelu_tanh_slope(float x) {
  const TanhTerms terms = gelu_tanh_terms(x);
  return multiply_add(x * terms.product, multiply_add(terms.square, 3.0f * 0.044715f * 1.5957691216f, 1.5957691216f),
                      terms.share);
}

}  // namespace mesa
