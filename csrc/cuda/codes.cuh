#pragma once
// Codes in kernels: packing them, the random offsets of a run of elements, ranges collected by many threads, and the
// division of a tensor's columns over threads. The arithmetic is csrc/common's, bit for bit.
#include <math.h>

#include "../common/quantize.h"
#include "../common/random.h"
#include "device.cuh"

// Runs the statements with the constant `kBits`.
#define MESA_DISPATCH_BITS(bits, ...)  \
  switch (bits) {                      \
    case 8: {                          \
      constexpr int kBits = 8;         \
      __VA_ARGS__;                     \
      break;                           \
    }                                  \
    case 4: {                          \
      constexpr int kBits = 4;         \
      __VA_ARGS__;                     \
      break;                           \
    }                                  \
    case 2: {                          \
      constexpr int kBits = 2;         \
      __VA_ARGS__;                     \
      break;                           \
    }                                  \
  }

namespace mesa {

constexpr int kCodeThreads = 256;
// Values that a thread loads before it uses the first.
constexpr int kRunElements = 16;
constexpr int kRowsInFlight = 4;  // at most

// ---- one run of V elements -----------------------------------------------------------------------------------------
// encode() and unit_from_u16() without the conversions between float and integer, which run at a quarter of the rate:
// adding 2^23 toward zero leaves the integer part in the low bits, 16 bits below the exponent of 1 are a fraction.
__device__ __forceinline__ uint32_t encode_device(float x, Step s, float u, float qmax) {
#if defined(__CUDA_ARCH__)
  const float t = fminf(fmaxf((x - s.lo) * s.inv, 0.0f), qmax);
  return __float_as_uint(__fadd_rz(t + u, 8388608.0f)) & 0xffu;
#else
  return encode(x, s, u, qmax);
#endif
}
__device__ __forceinline__ float unit_device(uint32_t r) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(0x3f800000u | r << 7) - 1.0f;
#else
  return unit_from_u16(r);
#endif
}

struct Rounding {
  uint64_t seed;
  bool stochastic;
};

// Offsets of the elements index .. index + V - 1 (index and V even).
class Offsets {
 public:
  __device__ __forceinline__ explicit Offsets(Rounding r) : r_(r), high_(0), key_(stream_key(r.seed, 0)) {}
  template <int V>
  __device__ __forceinline__ void get(int64_t index, float (&u)[V]) {
    if (!r_.stochastic) {
      MESA_UNROLL
      for (int k = 0; k < V; ++k) u[k] = 0.5f;
      return;
    }
    const uint64_t word = (uint64_t)index >> 1;
    if ((uint32_t)(word >> 32) != high_) {
      high_ = (uint32_t)(word >> 32);
      key_ = stream_key(r_.seed, word);
    }
    MESA_UNROLL
    for (int k = 0; k < V; k += 2) {
      const uint32_t w = random_word(key_, (uint32_t)word + k / 2);
      u[k] = unit_device(w & 0xffffu);
      u[k + 1] = unit_device(w >> 16);
    }
  }

 private:
  Rounding r_;
  uint32_t high_;
  StreamKey key_;
};

template <int BITS>
constexpr float kTopCode = (float)((1 << BITS) - 1);

// V codes as V*BITS/8 bytes; element 0 in the lowest bits.
template <int BITS, int V>
__device__ __forceinline__ void store_codes(uint8_t* p, const uint32_t (&c)[V]) {
  constexpr int kBytes = V * BITS / 8, kWords = (kBytes + 3) / 4, kPerWord = V / kWords;
  Pack<uint8_t, kBytes> out;
  MESA_UNROLL
  for (int w = 0; w < kWords; ++w) {
    uint32_t word = 0;
    MESA_UNROLL
    for (int k = 0; k < kPerWord; ++k) word |= c[w * kPerWord + k] << k * BITS;
    memcpy(out.v + 4 * w, &word, kBytes < 4 ? kBytes : 4);
  }
  store_pack<kBytes>(p, out);
}
template <int BITS, int V>
__device__ __forceinline__ Pack<uint8_t, V * BITS / 8> load_codes(const uint8_t* p) {
  return load_pack<V * BITS / 8>(p);
}
template <int BITS, int V>
__device__ __forceinline__ uint32_t code_of(const Pack<uint8_t, V * BITS / 8>& p, int k) {
  constexpr int kPerByte = 8 / BITS;
  return (uint32_t)p.v[k / kPerByte] >> (k % kPerByte) * BITS & ((1u << BITS) - 1);
}
// Where the number of bits need not be known to the compiler: few instructions more, a third of the kernels.
MESA_HD float top_code(int bits) { return (float)((1 << bits) - 1); }
__device__ __forceinline__ uint32_t code_at(const uint8_t* codes, int64_t i, int bits) {
  const int per_byte_shift = bits == 8 ? 0 : bits == 4 ? 1 : 2;
  const int within = (int)(i & ((1 << per_byte_shift) - 1));
  return (uint32_t)codes[i >> per_byte_shift] >> within * bits & ((1u << bits) - 1);
}
// The first `count` of up to 8 codes, byte by byte: the end of a tensor.
template <int V>
__device__ __forceinline__ void store_codes_until(uint8_t* p, const uint32_t (&c)[V], int count, int bits) {
  uint64_t word = 0;
  MESA_UNROLL
  for (int k = 0; k < V; ++k) word |= (uint64_t)(k < count ? c[k] : 0) << k * bits;
  for (int b = 0; 8 * b < count * bits; ++b) p[b] = (uint8_t)(word >> 8 * b);
}
template <int V>
struct CodeRun {  // V (4 or 8) codes, four a word
  uint32_t word[V / 4];
  __device__ __forceinline__ void load(const uint8_t* p, int bits) {
    if (bits == 8) {
      const Pack<uint32_t, V / 4> all = load_pack<V / 4>(reinterpret_cast<const uint32_t*>(p));
      MESA_UNROLL
      for (int i = 0; i < V / 4; ++i) word[i] = all.v[i];
    } else if (bits == 4) {
      const Pack<uint16_t, V / 4> all = load_pack<V / 4>(reinterpret_cast<const uint16_t*>(p));
      MESA_UNROLL
      for (int i = 0; i < V / 4; ++i) word[i] = all.v[i];
    } else {
      const Pack<uint8_t, V / 4> all = load_pack<V / 4>(p);
      MESA_UNROLL
      for (int i = 0; i < V / 4; ++i) word[i] = all.v[i];
    }
  }
  __device__ __forceinline__ void store(uint8_t* p, int bits) const {
    if (bits == 8) {
      Pack<uint32_t, V / 4> all;
      MESA_UNROLL
      for (int i = 0; i < V / 4; ++i) all.v[i] = word[i];
      store_pack<V / 4>(reinterpret_cast<uint32_t*>(p), all);
    } else if (bits == 4) {
      Pack<uint16_t, V / 4> all;
      MESA_UNROLL
      for (int i = 0; i < V / 4; ++i) all.v[i] = (uint16_t)word[i];
      store_pack<V / 4>(reinterpret_cast<uint16_t*>(p), all);
    } else {
      Pack<uint8_t, V / 4> all;
      MESA_UNROLL
      for (int i = 0; i < V / 4; ++i) all.v[i] = (uint8_t)word[i];
      store_pack<V / 4>(p, all);
    }
  }
  __device__ __forceinline__ void set(int k, uint32_t code, int bits) {
    if (k % 4 == 0) word[k / 4] = 0;
    word[k / 4] |= code << k % 4 * bits;
  }
  __device__ __forceinline__ uint32_t at(int k, int bits) const {
    return word[k / 4] >> k % 4 * bits & ((1u << bits) - 1);
  }
};

// ---- ranges --------------------------------------------------------------------------------------------------------
// (min, max) of finite values.
struct Range {
  float lo = INFINITY, hi = -INFINITY;
  __device__ __forceinline__ void add(float v) {
    if (is_finite(v)) {
      lo = fminf(lo, v);
      hi = fmaxf(hi, v);
    }
  }
  // Checks the run's extremes instead of every value; NaN loses against any number in fminf and fmaxf.
  template <int V>
  __device__ __forceinline__ void add(const float (&v)[V]) {
    float a = v[0], b = v[0];
    MESA_UNROLL
    for (int k = 1; k < V; ++k) {
      a = fminf(a, v[k]);
      b = fmaxf(b, v[k]);
    }
    if (is_finite(a) && is_finite(b)) {
      lo = fminf(lo, a);
      hi = fmaxf(hi, b);
    } else {
      MESA_UNROLL
      for (int k = 0; k < V; ++k) add(v[k]);
    }
  }
};

// Integers that order as the floats do.
MESA_HD int ordered_from_float(float f) {
  const int i = (int)float_bits(f);
  return i >= 0 ? i : i ^ 0x7fffffff;
}
MESA_HD float float_from_ordered(int i) { return bits_float((uint32_t)(i >= 0 ? i : i ^ 0x7fffffff)); }

// Exact and order independent: positive floats order as signed integers, negative ones against unsigned ones.
__device__ __forceinline__ void atomic_min_float(float* p, float v) {
  if ((int)float_bits(v) >= 0)
    atomicMin(reinterpret_cast<int*>(p), (int)float_bits(v));
  else
    atomicMax(reinterpret_cast<unsigned*>(p), (unsigned)float_bits(v));
}
__device__ __forceinline__ void atomic_max_float(float* p, float v) {
  if ((int)float_bits(v) >= 0)
    atomicMax(reinterpret_cast<int*>(p), (int)float_bits(v));
  else
    atomicMin(reinterpret_cast<unsigned*>(p), (unsigned)float_bits(v));
}
__device__ __forceinline__ void atomic_range(float* observed, int64_t group, Range r) {
  if (r.lo <= r.hi) {
    atomic_min_float(observed + 2 * group, r.lo);
    atomic_max_float(observed + 2 * group + 1, r.hi);
  }
}

__device__ __forceinline__ int warp_min_int(int v) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  return __reduce_min_sync(kFullWarp, v);
#else
  for (int o = 16; o > 0; o >>= 1) v = min(v, __shfl_xor_sync(kFullWarp, v, o));
  return v;
#endif
}
__device__ __forceinline__ int warp_max_int(int v) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  return __reduce_max_sync(kFullWarp, v);
#else
  for (int o = 16; o > 0; o >>= 1) v = max(v, __shfl_xor_sync(kFullWarp, v, o));
  return v;
#endif
}

// A block's ranges of up to kTableGroups groups, in shared memory as ordered integers; more groups go to memory at once.
constexpr int kTableGroups = 512;
template <class S>
__device__ __forceinline__ void table_clear(S&& table, int64_t groups) {
  if (groups <= kTableGroups) {
    for (int i = threadIdx.x; i < (int)groups; i += blockDim.x) {
      table[2 * i] = ordered_from_float(INFINITY);
      table[2 * i + 1] = ordered_from_float(-INFINITY);
    }
  }
  __syncthreads();
}
template <class S>
__device__ __forceinline__ void table_add(S&& table, float* observed, int64_t groups, int64_t group, Range r) {
  if (r.lo > r.hi) return;
  if (groups <= kTableGroups) {
    atomicMin(&table[2 * (int)group], ordered_from_float(r.lo));
    atomicMax(&table[2 * (int)group + 1], ordered_from_float(r.hi));
  } else {
    atomic_range(observed, group, r);
  }
}
// The same for a whole warp, each lane with its own group (-1: none): one atomic where they agree.
template <class S>
__device__ __forceinline__ void table_add_warp(S&& table, float* observed, int64_t groups, int64_t group, Range r) {
  const bool same = __all_sync(kFullWarp, group == __shfl_sync(kFullWarp, group, 0));
  if (same) {
    Range all;
    all.lo = float_from_ordered(warp_min_int(ordered_from_float(r.lo)));
    all.hi = float_from_ordered(warp_max_int(ordered_from_float(r.hi)));
    if (group >= 0 && lane_id() == 0) table_add(table, observed, groups, group, all);
  } else if (group >= 0) {
    table_add(table, observed, groups, group, r);
  }
}
template <class S>
__device__ __forceinline__ void table_flush(S&& table, float* observed, int64_t groups) {
  __syncthreads();
  if (groups > kTableGroups) return;
  for (int i = threadIdx.x; i < (int)groups; i += blockDim.x) {
    Range r;
    r.lo = float_from_ordered(table[2 * i]);
    r.hi = float_from_ordered(table[2 * i + 1]);
    atomic_range(observed, i, r);
  }
}
MESA_HD uint32_t block_range_bits(float lo, float hi) {
  if (lo > hi) lo = hi = 0.0f;
  return (uint32_t)bf16_floor(lo) | (uint32_t)bf16_ceil(hi) << 16;
}
MESA_HD Step block_step(uint32_t range, float qmax) {
  return make_step(bf16_float((uint16_t)range), bf16_float((uint16_t)(range >> 16)), qmax);
}

// block_size is often a power of two: then a shift.
struct BlockIndex {
  int64_t size;
  int shift;  // -1: not a power of two
  MESA_HD int64_t of(int64_t index) const { return shift >= 0 ? index >> shift : divide(index, size).quotient; }
};
inline BlockIndex block_index(int64_t size) {
  BlockIndex b{size, -1};
  for (int s = 0; s < 31; ++s)
    if (size == (int64_t)1 << s) b.shift = s;
  return b;
}

inline bool is_contiguous(const View3& v) {
  return (v.inner == 1 || v.inner_stride == 1) && (v.groups == 1 || v.group_stride == v.inner) &&
         (v.outer == 1 || v.outer_stride == v.groups * v.inner);
}

// ---- columns -------------------------------------------------------------------------------------------------------
// A tensor as rows of `columns` vectors each. A thread keeps its column (and with it group, channel, step) and walks
// down the rows; neighbouring threads have neighbouring columns. No division inside the loops.
struct Columns {
  int64_t rows, columns;
  int64_t row_lanes;  // threads that share a column
  int64_t passes;     // columns a thread takes, one after the other (then row_lanes is 1)
  int blocks;
};
inline Columns plan_columns(int64_t rows, int64_t columns, int per_thread = kRowsInFlight) {
  Columns p{rows, columns, 1, 1, 1};
  if (rows <= 0 || columns <= 0) return p;
  const int64_t most = grid_limit() * (int64_t)kCodeThreads;
  int64_t threads = ceil_div(rows * columns, per_thread);
  if (threads > most) threads = most;
  if (columns >= threads) {
    p.passes = ceil_div(columns, threads);
    threads = ceil_div(columns, p.passes);
  } else {
    p.row_lanes = ceil_div(threads, columns);
    if (p.row_lanes * columns > most) p.row_lanes = most / columns;
    if (p.row_lanes > rows) p.row_lanes = rows;
    threads = p.row_lanes * columns;
  }
  p.blocks = (int)ceil_div(threads, kCodeThreads);
  return p;
}
struct Place {
  int64_t column, row;
  bool valid;
};
__device__ __forceinline__ Place place_of(const Columns& p, int64_t pass) {
  const int64_t t = thread_index();
  Place at;
  if (p.passes > 1) {
    at.column = t + pass * thread_count();
    at.row = 0;
    at.valid = at.column < p.columns;
  } else {
    const Quotient q = divide(t, p.columns);
    at.column = q.remainder;
    at.row = q.quotient;
    at.valid = at.row < p.row_lanes;
  }
  return at;
}

}  // namespace mesa
