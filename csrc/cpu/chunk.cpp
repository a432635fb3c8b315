#include "chunk.h"

#include <string.h>

#include "../common/random.h"
#include "clones.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "packed codes and random words are laid out little end first"
#endif

namespace mesa {
namespace {

constexpr float kInf = __builtin_inff();

// --- conversions -------------------------------------------------------------------------------------------------

MESA_HD float half_to_float(uint16_t h) {
  const uint32_t exponent = h & 0x7c00u;
  uint32_t u = ((h & 0x7fffu) << 13) + (112u << 23);
  u = exponent == 0x7c00u ? u + (112u << 23) : u;                                               // inf, NaN
  u = exponent == 0 ? float_bits((float)(int32_t)(h & 0x3ffu) * (1.0f / 16777216.0f)) : u;      // zero, subnormal
  return bits_float(u | (h & 0x8000u) << 16);
}

MESA_HD uint16_t float_to_half(float x) {
  const uint32_t u = float_bits(x), a = u & 0x7fffffffu;
  const uint32_t normal = (a + 0xfffu + ((a >> 13) & 1u) - (112u << 23)) >> 13;
  const uint32_t small = float_bits(bits_float(a) + 0.5f) - 0x3f000000u;  // adding 0.5 rounds to the subnormals' step
  uint32_t r = a < 0x38800000u ? small : normal;
  r = a >= 0x47800000u ? 0x7c00u : r;
  r = a > 0x7f800000u ? 0x7e00u : r;
  return (uint16_t)(r | (u >> 16 & 0x8000u));
}

MESA_HD uint16_t float_to_bfloat(float x) {
  const uint32_t u = float_bits(x);
  const uint32_t r = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
  return (uint16_t)(x != x ? 0x7fc0u : r);
}

MESA_CLONES void load_half(const uint16_t* __restrict x, int64_t n, float* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = half_to_float(x[i]);
}
MESA_CLONES void load_bfloat(const uint16_t* __restrict x, int64_t n, float* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = bf16_float(x[i]);
}
MESA_CLONES void store_half(const float* __restrict x, int64_t n, uint16_t* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = float_to_half(x[i]);
}
MESA_CLONES void store_bfloat(const float* __restrict x, int64_t n, uint16_t* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = float_to_bfloat(x[i]);
}

// --- random words --------------------------------------------------------------------------------------------------

MESA_CLONES void fill_words(StreamKey key, uint32_t word, int64_t n, uint32_t* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = random_word(key, word + (uint32_t)i);
}

// --- codes -----------------------------------------------------------------------------------------------------------

MESA_CLONES void encode_stochastic(const float* __restrict x, int64_t n, Step s, const uint16_t* __restrict random,
                                   float qmax, uint8_t* __restrict codes) {
  for (int64_t i = 0; i < n; ++i) codes[i] = (uint8_t)encode(x[i], s, unit_from_u16(random[i]), qmax);
}
MESA_CLONES void encode_nearest(const float* __restrict x, int64_t n, Step s, float qmax, uint8_t* __restrict codes) {
  for (int64_t i = 0; i < n; ++i) codes[i] = (uint8_t)encode(x[i], s, 0.5f, qmax);
}
MESA_CLONES void encode_each_stochastic(const float* __restrict x, int64_t n, const float* __restrict lo,
                                        const float* __restrict inv, const uint16_t* __restrict random, float qmax,
                                        uint8_t* __restrict codes) {
  for (int64_t i = 0; i < n; ++i)
    codes[i] = (uint8_t)encode(x[i], Step{lo[i], 0.0f, inv[i]}, unit_from_u16(random[i]), qmax);
}
MESA_CLONES void encode_each_nearest(const float* __restrict x, int64_t n, const float* __restrict lo,
                                     const float* __restrict inv, float qmax, uint8_t* __restrict codes) {
  for (int64_t i = 0; i < n; ++i) codes[i] = (uint8_t)encode(x[i], Step{lo[i], 0.0f, inv[i]}, 0.5f, qmax);
}

MESA_CLONES void pack4(const uint8_t* __restrict codes, int64_t bytes, uint8_t* __restrict packed) {
  for (int64_t i = 0; i < bytes; ++i) packed[i] = (uint8_t)(codes[2 * i] | codes[2 * i + 1] << 4);
}
MESA_CLONES void pack2(const uint8_t* __restrict codes, int64_t bytes, uint8_t* __restrict packed) {
  for (int64_t i = 0; i < bytes; ++i)
    packed[i] = (uint8_t)(codes[4 * i] | codes[4 * i + 1] << 2 | codes[4 * i + 2] << 4 | codes[4 * i + 3] << 6);
}
MESA_CLONES void unpack4(const uint8_t* __restrict packed, int64_t bytes, uint8_t* __restrict codes) {
  for (int64_t i = 0; i < bytes; ++i) {
    codes[2 * i] = packed[i] & 15;
    codes[2 * i + 1] = packed[i] >> 4;
  }
}
MESA_CLONES void unpack2(const uint8_t* __restrict packed, int64_t bytes, uint8_t* __restrict codes) {
  for (int64_t i = 0; i < bytes; ++i) {
    codes[4 * i] = packed[i] & 3;
    codes[4 * i + 1] = packed[i] >> 2 & 3;
    codes[4 * i + 2] = packed[i] >> 4 & 3;
    codes[4 * i + 3] = packed[i] >> 6;
  }
}
// Eight bytes of 0 or 1 and one byte of eight bits, by one multiplication: every product bit lands alone.
MESA_CLONES void pack1(const uint8_t* __restrict mask, int64_t bytes, uint8_t* __restrict packed) {
  for (int64_t i = 0; i < bytes; ++i) {
    uint64_t eight;
    memcpy(&eight, mask + 8 * i, 8);
    packed[i] = (uint8_t)(eight * 0x0102040810204080ull >> 56);
  }
}
MESA_CLONES void unpack1(const uint8_t* __restrict packed, int64_t bytes, uint8_t* __restrict mask) {
  for (int64_t i = 0; i < bytes; ++i) {
    const uint64_t low = (packed[i] & 0x7full) * 0x0002040810204081ull & 0x0101010101010101ull;
    const uint64_t eight = low | (uint64_t)(packed[i] >> 7) << 56;
    memcpy(mask + 8 * i, &eight, 8);
  }
}

}  // namespace

void load_floats(DType t, const void* x, int64_t stride, int64_t n, float* out) {
  const uint16_t* narrow = (const uint16_t*)x;
  const float* wide = (const float*)x;
  if (stride == 1) {
    if (t == DType::f32) memcpy(out, x, (size_t)n * 4);
    if (t == DType::f16) load_half(narrow, n, out);
    if (t == DType::bf16) load_bfloat(narrow, n, out);
    return;
  }
  switch (t) {
    case DType::f32:
      for (int64_t i = 0; i < n; ++i) out[i] = wide[i * stride];
      break;
    case DType::f16:
      for (int64_t i = 0; i < n; ++i) out[i] = half_to_float(narrow[i * stride]);
      break;
    case DType::bf16:
      for (int64_t i = 0; i < n; ++i) out[i] = bf16_float(narrow[i * stride]);
      break;
  }
}

void store_floats(DType t, const float* x, int64_t n, void* out) {
  if (t == DType::f32) memcpy(out, x, (size_t)n * 4);
  if (t == DType::f16) store_half(x, n, (uint16_t*)out);
  if (t == DType::bf16) store_bfloat(x, n, (uint16_t*)out);
}

void fill_random(uint64_t seed, uint64_t first, int64_t n, uint16_t* out) {
  if (n > 0 && (first & 1)) {  // the second half of a word
    *out++ = (uint16_t)random_u16(seed, first++);
    --n;
  }
  uint64_t word = first >> 1;
  for (int64_t words = n >> 1; words > 0;) {  // the key changes every 2^32 words
    const uint64_t left = (1ull << 32) - (word & 0xffffffffull);
    const int64_t m = (uint64_t)words < left ? words : (int64_t)left;
    if ((uintptr_t)out & 3) {
      for (int64_t i = 0; i < 2 * m; ++i) out[i] = (uint16_t)random_u16(seed, (word << 1) + (uint64_t)i);
    } else {
      fill_words(stream_key(seed, word), (uint32_t)word, m, (uint32_t*)out);
    }
    word += (uint64_t)m;
    out += 2 * m;
    words -= m;
  }
  if (n > 0 && (n & 1)) *out = (uint16_t)random_u16(seed, word << 1);
}

void encode_chunk(const float* x, int64_t n, Step s, const uint16_t* random, float qmax, uint8_t* codes) {
  if (random)
    encode_stochastic(x, n, s, random, qmax, codes);
  else
    encode_nearest(x, n, s, qmax, codes);
}

void encode_chunk(const float* x, int64_t n, const float* lo, const float* inv, const uint16_t* random, float qmax,
                  uint8_t* codes) {
  if (random)
    encode_each_stochastic(x, n, lo, inv, random, qmax, codes);
  else
    encode_each_nearest(x, n, lo, inv, qmax, codes);
}

MESA_CLONES static void decode_run(const uint8_t* __restrict codes, int64_t n, Step s, float* __restrict x) {
  for (int64_t i = 0; i < n; ++i) x[i] = decode(codes[i], s);
}
MESA_CLONES static void decode_each(const uint8_t* __restrict codes, int64_t n, const float* __restrict lo,
                                    const float* __restrict step, float* __restrict x) {
  for (int64_t i = 0; i < n; ++i) x[i] = decode(codes[i], Step{lo[i], step[i], 0.0f});
}
void decode_chunk(const uint8_t* codes, int64_t n, Step s, float* x) { decode_run(codes, n, s, x); }
void decode_chunk(const uint8_t* codes, int64_t n, const float* lo, const float* step, float* x) {
  decode_each(codes, n, lo, step, x);
}

void pack_codes(const uint8_t* codes, int64_t n, int bits, uint8_t* packed) {
  const int64_t bytes = n * bits / 8;
  if (bits == 8) memcpy(packed, codes, (size_t)n);
  if (bits == 4) pack4(codes, bytes, packed);
  if (bits == 2) pack2(codes, bytes, packed);
  if (bits == 1) pack1(codes, bytes, packed);
  if (n * bits % 8) {
    uint32_t last = 0;
    for (int64_t i = bytes * 8 / bits, shift = 0; i < n; ++i, shift += bits) last |= (uint32_t)codes[i] << shift;
    packed[bytes] = (uint8_t)last;
  }
}

void unpack_codes(const uint8_t* packed, int64_t n, int bits, uint8_t* codes) {
  const int64_t bytes = n * bits / 8;
  if (bits == 8) memcpy(codes, packed, (size_t)n);
  if (bits == 4) unpack4(packed, bytes, codes);
  if (bits == 2) unpack2(packed, bytes, codes);
  if (bits == 1) unpack1(packed, bytes, codes);
  for (int64_t i = bytes * 8 / bits, shift = 0; i < n; ++i, shift += bits)
    codes[i] = (uint8_t)(packed[bytes] >> shift & ((1 << bits) - 1));
}

// --- ranges ----------------------------------------------------------------------------------------------------------
// A comparison with NaN is false, so NaN never counts; the second comparison leaves the infinities out.

namespace {
MESA_HD float lower(float v, float lo) { return (v < lo) & (v >= -kMaxFloat) ? v : lo; }
MESA_HD float upper(float v, float hi) { return (v > hi) & (v <= kMaxFloat) ? v : hi; }

MESA_CLONES void widen_each(const float* __restrict x, int64_t n, float* __restrict lo, float* __restrict hi) {
  for (int64_t i = 0; i < n; ++i) {
    lo[i] = lower(x[i], lo[i]);
    hi[i] = upper(x[i], hi[i]);
  }
}
MESA_CLONES void widen_lanes(const float* __restrict x, int64_t rows, float* __restrict lo, float* __restrict hi) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < kLanes; ++j) {
      lo[j] = lower(x[i * kLanes + j], lo[j]);
      hi[j] = upper(x[i * kLanes + j], hi[j]);
    }
}
template <int64_t width>
MESA_HD void halve(float* lo, float* hi) {
  for (int64_t j = 0; j < width; ++j) {
    lo[j] = lo[j + width] < lo[j] ? lo[j + width] : lo[j];
    hi[j] = hi[j + width] > hi[j] ? hi[j + width] : hi[j];
  }
}
MESA_CLONES void fold_lanes(float* __restrict lo, float* __restrict hi) {
  halve<32>(lo, hi);
  halve<16>(lo, hi);
  halve<8>(lo, hi);
  halve<4>(lo, hi);
  halve<2>(lo, hi);
  halve<1>(lo, hi);
}
}  // namespace

void range_chunk(const float* x, int64_t n, float* lo, float* hi) { widen_each(x, n, lo, hi); }

void range_lanes(const float* x, int64_t n, float* lo, float* hi) {
  const int64_t rows = n / kLanes;
  widen_lanes(x, rows, lo, hi);
  widen_each(x + rows * kLanes, n - rows * kLanes, lo, hi);
}

void reduce_lanes(float* lanes_lo, float* lanes_hi, float& lo, float& hi) {
  fold_lanes(lanes_lo, lanes_hi);
  lo = lanes_lo[0];
  hi = lanes_hi[0];
  for (int64_t j = 0; j < kLanes; ++j) {
    lanes_lo[j] = kInf;
    lanes_hi[j] = -kInf;
  }
}

void range_chunk(const float* x, int64_t n, float& lo, float& hi) {
  float lanes_lo[kLanes], lanes_hi[kLanes];
  for (int64_t j = 0; j < kLanes; ++j) {
    lanes_lo[j] = lo;
    lanes_hi[j] = hi;
  }
  range_lanes(x, n, lanes_lo, lanes_hi);
  fold_lanes(lanes_lo, lanes_hi);
  lo = lanes_lo[0];
  hi = lanes_hi[0];
}

// --- what follows decoding ---------------------------------------------------------------------------------------

namespace {
MESA_CLONES void scale_all(float* __restrict x, int64_t n, float scale) {
  for (int64_t i = 0; i < n; ++i) x[i] = x[i] * scale;
}
MESA_CLONES void shift_all(float* __restrict x, int64_t n, float shift) {
  for (int64_t i = 0; i < n; ++i) x[i] = x[i] + shift;
}
MESA_CLONES void scale_each(float* __restrict x, int64_t n, const float* __restrict scale) {
  for (int64_t i = 0; i < n; ++i) x[i] = x[i] * scale[i];
}
MESA_CLONES void shift_each(float* __restrict x, int64_t n, const float* __restrict shift) {
  for (int64_t i = 0; i < n; ++i) x[i] = x[i] + shift[i];
}
MESA_CLONES void relu_all(float* __restrict x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = x[i] < 0.0f ? 0.0f : x[i];
}
MESA_CLONES void positive_all(const float* __restrict x, int64_t n, uint8_t* __restrict mask) {
  for (int64_t i = 0; i < n; ++i) mask[i] = x[i] > 0.0f ? 1 : 0;
}
MESA_CLONES void mask_all(float* __restrict x, int64_t n, const uint8_t* __restrict mask, float scale) {
  for (int64_t i = 0; i < n; ++i) x[i] = mask[i] ? x[i] * scale : 0.0f;
}
}  // namespace

void affine_chunk(float* x, int64_t n, const float* scale, const float* shift) {
  if (scale) scale_all(x, n, *scale);
  if (shift) shift_all(x, n, *shift);
}
void affine_chunk_each(float* x, int64_t n, const float* scale, const float* shift) {
  if (scale) scale_each(x, n, scale);
  if (shift) shift_each(x, n, shift);
}
void relu_chunk(float* x, int64_t n) { relu_all(x, n); }
void positive_chunk(const float* x, int64_t n, uint8_t* mask) { positive_all(x, n, mask); }
void mask_chunk(float* x, int64_t n, const uint8_t* mask, float scale) { mask_all(x, n, mask, scale); }

}  // namespace mesa
