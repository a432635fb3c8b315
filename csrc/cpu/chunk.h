#pragma once
// Steps over one chunk: a few hundred to a thousand values in buffers that stay in the first-level cache. Vectorised,
// chosen for the processor at run time (csrc/cpu/chunk.cpp); serial; buffers of one call must not overlap.
#include <stdint.h>
#include "../common/dtype.h"
#include "../common/quantize.h"
namespace mesa {

constexpr int64_t kChunk = 2048;  // values a chunk at most, where a caller's buffers are of fixed size

inline int64_t element_size(DType t) { return t == DType::f32 ? 4 : 2; }

// Values that are worked on next: several passes over one chunk leave the memory idle otherwise, and the processor's own
// prefetching ends with the page.
inline void prefetch(const float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) __builtin_prefetch(x + i, 0, 2);
}

// n values of type t, `stride` elements apart, to float32, and back (contiguous, rounded to nearest even).
void load_floats(DType t, const void* x, int64_t stride, int64_t n, float* out);
void store_floats(DType t, const float* x, int64_t n, void* out);

// The 16 random bits of the elements with linear index first, first + 1, ...
void fill_random(uint64_t seed, uint64_t first, int64_t n, uint16_t* out);

// Values to codes, one a byte. random: their 16 bits each, or null to round to nearest. The second form has a range for
// each element (lo, inv: as in Step).
void encode_chunk(const float* x, int64_t n, Step s, const uint16_t* random, float qmax, uint8_t* codes);
void encode_chunk(const float* x, int64_t n, const float* lo, const float* inv, const uint16_t* random, float qmax,
                  uint8_t* codes);
void decode_chunk(const uint8_t* codes, int64_t n, Step s, float* x);
void decode_chunk(const uint8_t* codes, int64_t n, const float* lo, const float* step, float* x);

// All at once, and while the values that follow are fetched: random bits (if stochastic), codes, and the values' own
// range. Value i has the range lo, inv[(at + i) % table] and widens low, high[(at + i) % table]: by infinities too, never by
// NaN. table, at and n are multiples of kStrip; the linear index `first` is even and first >> 33 that of all n.
constexpr int64_t kStrip = 64;
void encode_strips(const float* x, int64_t n, const float* lo, const float* inv, int64_t table, int64_t at,
                   bool stochastic, uint64_t seed, uint64_t first, float qmax, uint8_t* codes, float* low, float* high);

// The ranges of blocks of block_size (a multiple of 8) values; the last one may be shorter. found: bfloat16 (lo, hi) each,
// (0, 0) where nothing is finite; lo, inv: as in Step, of what was found.
void encode_ranges(const float* x, int64_t n, int64_t block_size, float qmax, uint16_t* found, float* lo, float* inv);
// One number a block to one a value: n of them.
void spread_blocks(const float* values, int64_t block_size, int64_t n, float* out);

// Codes of 1, 2 or 4 bits, one a byte <-> packed; the first one at bit 0 of the first byte. 8 bits: a copy.
void pack_codes(const uint8_t* codes, int64_t n, int bits, uint8_t* packed);
void unpack_codes(const uint8_t* packed, int64_t n, int bits, uint8_t* codes);

// Widen (lo, hi) by the finite values of x. The second form has a range for each element, the third one for each column.
void range_chunk(const float* x, int64_t n, float& lo, float& hi);
void range_chunk(const float* x, int64_t n, float* lo, float* hi);
void range_rows(const float* x, int64_t rows, int64_t columns, float* lo, float* hi);
// Of ranges themselves: whether any of n has an infinite end beyond the empty range's (inf, -inf), and unions.
bool any_infinite(const float* lo, const float* hi, int64_t n);
void range_fold(const float* lo, const float* hi, float& into_lo, float& into_hi);  // of kStrip ranges
void range_union(const float* lo, const float* hi, int64_t n, float* into_lo, float* into_hi);

// x = x * scale + shift; scale or shift may be null. The second form has one of each for each element.
void affine_chunk(float* x, int64_t n, const float* scale, const float* shift);
void affine_chunk_each(float* x, int64_t n, const float* scale, const float* shift);
// Negative values become 0; NaN stays.
void relu_chunk(float* x, int64_t n);
// mask[i] = x[i] > 0, as 0 or 1.
void positive_chunk(const float* x, int64_t n, uint8_t* mask);
// x[i] = mask[i] ? x[i] * scale : 0.
void mask_chunk(float* x, int64_t n, const uint8_t* mask, float scale);

}  // namespace mesa
