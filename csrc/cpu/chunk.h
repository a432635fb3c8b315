#pragma once
// Steps over one chunk: a few hundred to a thousand values in buffers that stay in the first-level cache. Vectorised,
// chosen for the processor at run time (csrc/cpu/chunk.cpp); serial; buffers of one call must not overlap.
#include <stdint.h>
#include "../common/dtype.h"
#include "../common/quantize.h"
namespace mesa {

constexpr int64_t kChunk = 1024;  // values a chunk at most, where a caller's buffers are of fixed size

inline int64_t element_size(DType t) { return t == DType::f32 ? 4 : 2; }

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

// Codes of 1, 2 or 4 bits, one a byte <-> packed; the first one at bit 0 of the first byte. 8 bits: a copy.
void pack_codes(const uint8_t* codes, int64_t n, int bits, uint8_t* packed);
void unpack_codes(const uint8_t* packed, int64_t n, int bits, uint8_t* codes);

// Widen (lo, hi) by the finite values of x. The second form has a range for each element; in the third, element i widens
// lo[i % kLanes], hi[i % kLanes].
constexpr int64_t kLanes = 64;
void range_chunk(const float* x, int64_t n, float& lo, float& hi);
void range_chunk(const float* x, int64_t n, float* lo, float* hi);
void range_lanes(const float* x, int64_t n, float* lo, float* hi);
// The range of kLanes lanes, which are then (inf, -inf) again.
void reduce_lanes(float* lanes_lo, float* lanes_hi, float& lo, float& hi);

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
