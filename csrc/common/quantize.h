#pragma once
// The arithmetic of one element: value -> code -> value. Compiled without contraction everywhere
// (-ffp-contract=off, -fmad=false), so that CPU, CUDA and emulator give the same bits.
#include <stdint.h>
#include <string.h>
#include "host_device.h"
namespace mesa {

constexpr float kMaxFloat = 3.4028234663852886e38f;

// A code's step and its inverse for a range [lo, hi] and qmax = 2^bits - 1. hi/qmax - lo/qmax cannot overflow.
// An empty or reversed range has step 0: every value becomes code 0 and comes back as lo.
struct Step {
  float lo, step, inv;
};
MESA_HD Step make_step(float lo, float hi, float qmax) {
  Step s;
  s.lo = lo;
  const float d = hi / qmax - lo / qmax;
  s.step = d > 0.0f ? d : 0.0f;
  s.inv = d > 0.0f ? 1.0f / d : 0.0f;
  return s;
}

// u in [0, 1) rounds stochastically, u = 0.5 to nearest. Saturates at both ends; NaN becomes code 0, +inf qmax, -inf 0.
MESA_HD uint32_t encode(float x, Step s, float u, float qmax) {
  float t = (x - s.lo) * s.inv;
  t = t > 0.0f ? t : 0.0f;
  t = t < qmax ? t : qmax;
  return (uint32_t)(int32_t)(t + u);
}

MESA_HD float decode(uint32_t code, Step s) { return s.lo + (float)(int32_t)code * s.step; }

MESA_HD bool is_finite(float x) {
  const float a = x < 0.0f ? -x : x;
  return a <= kMaxFloat;
}

MESA_HD uint32_t float_bits(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  return u;
}
MESA_HD float bits_float(uint32_t u) {
  float x;
  memcpy(&x, &u, 4);
  return x;
}

// A block's range is kept as two bfloat16, lo rounded down and hi rounded up, so that it still covers the block.
// Finite in, finite out (the largest finite bfloat16 is kept where rounding would leave it; values then saturate).
MESA_HD uint16_t bf16_floor(float x) {
  uint32_t u = float_bits(x);
  const uint32_t cut = u & 0xffffu;
  u >>= 16;
  if (cut && (u & 0x8000u)) {  // negative: away from zero is down
    if ((u & 0x7fffu) < 0x7f7fu) u += 1;
  }
  return (uint16_t)u;
}
MESA_HD uint16_t bf16_ceil(float x) {
  uint32_t u = float_bits(x);
  const uint32_t cut = u & 0xffffu;
  u >>= 16;
  if (cut && !(u & 0x8000u)) {
    if (u < 0x7f7fu) u += 1;
  }
  return (uint16_t)u;
}
MESA_HD float bf16_float(uint16_t h) { return bits_float((uint32_t)h << 16); }

}  // namespace mesa
