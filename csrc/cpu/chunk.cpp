#include "chunk.h"

#include <string.h>

#include <algorithm>
#include <utility>

#include "../common/random.h"
#include "clones.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "packed codes and random words are laid out little end first"
#endif

namespace mesa {
namespace {

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
  const int32_t size = (int32_t)a;  // comparisons of unsigned integers would not vectorise
  uint32_t r = size < 0x38800000 ? small : normal;
  r = size >= 0x47800000 ? 0x7c00u : r;
  r = size > 0x7f800000 ? 0x7e00u : r;
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
// Four codes at once: as one word of which each byte keeps two bits.
MESA_CLONES void unpack2(const uint8_t* __restrict packed, int64_t bytes, uint8_t* __restrict codes) {
  for (int64_t i = 0; i < bytes; ++i) {
    const uint32_t four = packed[i], spread = (four | four << 6 | four << 12 | four << 18) & 0x03030303u;
    memcpy(codes + 4 * i, &spread, 4);
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
// A comparison with NaN is false, so NaN never counts. Infinities do not come up in practice: the fast form takes them
// for values, the careful form, which leaves them out, is used where one was met.

namespace {
constexpr float kInf = __builtin_inff();

MESA_HD float lower(float v, float lo) { return v < lo ? v : lo; }
MESA_HD float upper(float v, float hi) { return v > hi ? v : hi; }
MESA_HD float lower_finite(float v, float lo) { return (v < lo) & (v >= -kMaxFloat) ? v : lo; }
MESA_HD float upper_finite(float v, float hi) { return (v > hi) & (v <= kMaxFloat) ? v : hi; }

MESA_CLONES void widen_each(const float* __restrict x, int64_t n, float* __restrict lo, float* __restrict hi) {
  for (int64_t i = 0; i < n; ++i) {
    lo[i] = lower_finite(x[i], lo[i]);
    hi[i] = upper_finite(x[i], hi[i]);
  }
}

// Columns in strips whose limits stay in one place: over a whole row at a time, limits and values would meet at the same
// address within a page, which stalls loads. rows_apart: values from one row to the next.
MESA_CLONES void widen_strip(const float* __restrict x, int64_t rows, int64_t rows_apart, float* __restrict lo,
                             float* __restrict hi) {
  for (int64_t r = 0; r < rows; ++r, x += rows_apart)
    for (int64_t j = 0; j < kStrip; ++j) {
      lo[j] = lower(x[j], lo[j]);
      hi[j] = upper(x[j], hi[j]);
    }
}
MESA_CLONES bool find_infinite(const float* __restrict lo, const float* __restrict hi, int64_t n) {
  int32_t found = 0;
  for (int64_t j = 0; j < n; ++j) found |= (int32_t)(lo[j] < -kMaxFloat) | (int32_t)(hi[j] > kMaxFloat);
  return found != 0;
}
MESA_CLONES void unite(const float* __restrict lo, const float* __restrict hi, int64_t n, float* __restrict into_lo,
                       float* __restrict into_hi) {
  for (int64_t j = 0; j < n; ++j) {
    into_lo[j] = lower(lo[j], into_lo[j]);
    into_hi[j] = upper(hi[j], into_hi[j]);
  }
}
// 64 limits to 16, which is few enough for a plain loop.
MESA_CLONES void fold_strip(const float* __restrict lo, const float* __restrict hi, float* __restrict low,
                            float* __restrict high) {
  for (int64_t j = 0; j < 16; ++j) {
    low[j] = lower(lower(lo[j], lo[j + 16]), lower(lo[j + 32], lo[j + 48]));
    high[j] = upper(upper(hi[j], hi[j + 16]), upper(hi[j + 32], hi[j + 48]));
  }
}

// Bits as integers in the order of the values: a minimum of integers vectorises, one of floats with NaN does not.
MESA_HD int32_t ordered(int32_t bits) { return bits ^ (bits >> 31 & 0x7fffffff); }

struct OrderedRange {
  int32_t lo, hi;
};
MESA_CLONES OrderedRange ordered_range(const float* __restrict x, int64_t n) {
  OrderedRange r{INT32_MAX, INT32_MIN};
  for (int64_t i = 0; i < n; ++i) {
    const int32_t bits = (int32_t)float_bits(x[i]), key = ordered(bits);
    const int32_t finite = -(int32_t)((bits & 0x7fffffff) < 0x7f800000);  // all bits or none: a choice would branch
    const int32_t low = (key & finite) | (INT32_MAX & ~finite), high = (key & finite) | (INT32_MIN & ~finite);
    r.lo = low < r.lo ? low : r.lo;
    r.hi = high > r.hi ? high : r.hi;
  }
  return r;
}
}  // namespace

void range_chunk(const float* x, int64_t n, float* lo, float* hi) { widen_each(x, n, lo, hi); }

bool any_infinite(const float* lo, const float* hi, int64_t n) { return find_infinite(lo, hi, n); }
void range_fold(const float* lo, const float* hi, float& into_lo, float& into_hi) {
  float low[16], high[16];
  fold_strip(lo, hi, low, high);
  for (int64_t j = 0; j < 16; ++j) into_lo = lower(low[j], into_lo), into_hi = upper(high[j], into_hi);
}
void range_union(const float* lo, const float* hi, int64_t n, float* into_lo, float* into_hi) {
  unite(lo, hi, n, into_lo, into_hi);
}

void range_rows(const float* x, int64_t rows, int64_t columns, float* lo, float* hi) {
  alignas(64) float low[kStrip], high[kStrip];
  int64_t c = 0;
  for (; c + kStrip <= columns; c += kStrip) {
    memcpy(low, lo + c, sizeof low);
    memcpy(high, hi + c, sizeof high);
    widen_strip(x + c, rows, columns, low, high);
    if (find_infinite(low, high, kStrip)) {
      for (int64_t r = 0; r < rows; ++r) widen_each(x + r * columns + c, kStrip, lo + c, hi + c);
    } else {
      memcpy(lo + c, low, sizeof low);
      memcpy(hi + c, high, sizeof high);
    }
  }
  if (c == columns) return;
  for (int64_t r = 0; r < rows; ++r) widen_each(x + r * columns + c, columns - c, lo + c, hi + c);
}

void range_chunk(const float* x, int64_t n, float& lo, float& hi) {
  if (n >= 4 * kStrip) {
    alignas(64) float low[kStrip], high[kStrip];
    const int64_t rows = n / kStrip;
    for (int64_t j = 0; j < kStrip; ++j) low[j] = kInf, high[j] = -kInf;
    widen_strip(x, rows, kStrip, low, high);
    if (!find_infinite(low, high, kStrip)) {
      range_fold(low, high, lo, hi);
      x += rows * kStrip;
      n -= rows * kStrip;
    }
  }
  if (n == 0) return;
  const OrderedRange r = ordered_range(x, n);
  if (r.lo > r.hi) return;
  lo = lower(bits_float((uint32_t)ordered(r.lo)), lo);
  hi = upper(bits_float((uint32_t)ordered(r.hi)), hi);
}

// --- blocks ----------------------------------------------------------------------------------------------------------

namespace {
// Of each pair of neighbours: a step that vectorises, other than a minimum over a short run.
MESA_CLONES void pair_limits(const float* __restrict x, int64_t pairs, float* __restrict lo, float* __restrict hi) {
  for (int64_t i = 0; i < pairs; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1], start_lo = lower(a, kInf), start_hi = upper(a, -kInf);
    lo[i] = lower(b, start_lo);
    hi[i] = upper(b, start_hi);
  }
}
MESA_CLONES void unite_pairs(const float* __restrict lo, const float* __restrict hi, int64_t pairs,
                             float* __restrict low, float* __restrict high) {
  for (int64_t i = 0; i < pairs; ++i) {
    low[i] = lower(lo[2 * i], lo[2 * i + 1]);
    high[i] = upper(hi[2 * i], hi[2 * i + 1]);
  }
}
// blocks * size <= kChunk
void block_limits(const float* x, int64_t blocks, int64_t size, float* lo, float* hi) {
  alignas(64) float a_lo[kChunk / 2], a_hi[kChunk / 2], b_lo[kChunk / 4], b_hi[kChunk / 4];
  int64_t n = blocks * size / 2;
  pair_limits(x, n, a_lo, a_hi);
  size /= 2;
  float *low = a_lo, *high = a_hi, *next_low = b_lo, *next_high = b_hi;
  for (; size % 2 == 0; size /= 2) {
    n /= 2;
    unite_pairs(low, high, n, next_low, next_high);
    std::swap(low, next_low);
    std::swap(high, next_high);
  }
  for (int64_t b = 0; b < blocks; ++b) {
    lo[b] = low[b * size], hi[b] = high[b * size];
    for (int64_t i = 1; i < size; ++i) lo[b] = lower(low[b * size + i], lo[b]), hi[b] = upper(high[b * size + i], hi[b]);
  }
}
// lo and hi of blocks to what is kept of them, and lo, 1 / step of that.
MESA_CLONES void block_steps(int64_t blocks, float qmax, uint16_t* __restrict found, float* __restrict lo,
                             float* __restrict hi, float* __restrict inv) {
  for (int64_t b = 0; b < blocks; ++b) {
    const float some = lo[b] <= hi[b] ? 1.0f : 0.0f;
    lo[b] = some > 0.0f ? lo[b] : 0.0f;
    hi[b] = some > 0.0f ? hi[b] : 0.0f;
  }
  for (int64_t b = 0; b < blocks; ++b) {
    found[2 * b] = bf16_floor(lo[b]);
    found[2 * b + 1] = bf16_ceil(hi[b]);
    lo[b] = bf16_float(found[2 * b]);
    hi[b] = bf16_float(found[2 * b + 1]);
  }
  for (int64_t b = 0; b < blocks; ++b) inv[b] = make_step(lo[b], hi[b], qmax).inv;
}
MESA_CLONES void spread(const float* __restrict values, int64_t size, int64_t n, float* __restrict out) {
  for (int64_t i = 0; i < n; i += size, ++values) {
    const float value = *values;
    const int64_t m = size < n - i ? size : n - i;
    for (int64_t j = 0; j < m; ++j) out[i + j] = value;
  }
}
}  // namespace

void spread_blocks(const float* values, int64_t block_size, int64_t n, float* out) { spread(values, block_size, n, out); }

void encode_ranges(const float* x, int64_t n, int64_t block_size, float qmax, uint16_t* found, float* lo, float* inv) {
  const int64_t at_once = kChunk / block_size;
  float hi[kChunk / 16];
  while (n > 0) {
    const int64_t whole = std::min(at_once, n / block_size), all = std::min(at_once, (n + block_size - 1) / block_size);
    block_limits(x, whole, block_size, lo, hi);
    const bool careful = find_infinite(lo, hi, whole);
    for (int64_t b = careful ? 0 : whole; b < all; ++b) {
      lo[b] = kInf, hi[b] = -kInf;
      range_chunk(x + b * block_size, std::min(block_size, n - b * block_size), lo[b], hi[b]);
    }
    block_steps(all, qmax, found, lo, hi, inv);
    found += 2 * all, lo += all, inv += all;
    x += at_once * block_size, n -= at_once * block_size;
  }
}

// --- everything at once ------------------------------------------------------------------------------------------

namespace {
constexpr int64_t kAhead = 1024;  // values between the one worked on and the one fetched

MESA_HD void fetch_strip(const float* x) {
  for (int64_t i = 0; i < kStrip; i += 16) __builtin_prefetch(x + kAhead + i, 0, 3);
}

MESA_CLONES void strips_stochastic(const float* __restrict x, int64_t n, const float* __restrict lo,
                                   const float* __restrict inv, int64_t table, int64_t at, StreamKey key, uint32_t word,
                                   float qmax, uint8_t* __restrict codes, float* __restrict low,
                                   float* __restrict high) {
  for (int64_t i = 0; i < n; i += kStrip) {
    fetch_strip(x);
    uint32_t words[kStrip / 2];
    uint16_t random[kStrip];
    for (int64_t j = 0; j < kStrip / 2; ++j) words[j] = random_word(key, word + (uint32_t)j);
    memcpy(random, words, sizeof words);
    for (int64_t j = 0; j < kStrip; ++j)
      codes[j] = (uint8_t)encode(x[j], Step{lo[at + j], 0.0f, inv[at + j]}, unit_from_u16(random[j]), qmax);
    for (int64_t j = 0; j < kStrip; ++j) low[at + j] = lower(x[j], low[at + j]);
    for (int64_t j = 0; j < kStrip; ++j) high[at + j] = upper(x[j], high[at + j]);
    x += kStrip;
    codes += kStrip;
    word += (uint32_t)(kStrip / 2);
    at = at + kStrip == table ? 0 : at + kStrip;
  }
}
MESA_CLONES void strips_nearest(const float* __restrict x, int64_t n, const float* __restrict lo,
                                const float* __restrict inv, int64_t table, int64_t at, float qmax,
                                uint8_t* __restrict codes, float* __restrict low, float* __restrict high) {
  for (int64_t i = 0; i < n; i += kStrip) {
    fetch_strip(x);
    for (int64_t j = 0; j < kStrip; ++j)
      codes[j] = (uint8_t)encode(x[j], Step{lo[at + j], 0.0f, inv[at + j]}, 0.5f, qmax);
    for (int64_t j = 0; j < kStrip; ++j) low[at + j] = lower(x[j], low[at + j]);
    for (int64_t j = 0; j < kStrip; ++j) high[at + j] = upper(x[j], high[at + j]);
    x += kStrip;
    codes += kStrip;
    at = at + kStrip == table ? 0 : at + kStrip;
  }
}
}  // namespace

void encode_strips(const float* x, int64_t n, const float* lo, const float* inv, int64_t table, int64_t at,
                   bool stochastic, uint64_t seed, uint64_t first, float qmax, uint8_t* codes, float* low, float* high) {
  if (stochastic)
    strips_stochastic(x, n, lo, inv, table, at, stream_key(seed, first >> 1), (uint32_t)(first >> 1), qmax, codes, low,
                      high);
  else
    strips_nearest(x, n, lo, inv, table, at, qmax, codes, low, high);
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
