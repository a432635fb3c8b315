#pragma once
// Quantising on the CPU, for every operator that does it: a thread makes values chunk by chunk as float32 and hands them
// to an EncodeStream, or asks a Decoder for them. Which range belongs to which value, packing, random bits and the
// collection of ranges happen in here.
//
//   Encoder encoder(layout, ranges, found, codes, seed, stochastic);
//   parallel_values(layout.numel(), encoder.unit(), [&](int64_t begin, int64_t end) {
//     EncodeStream stream(encoder, begin);            // begin: a multiple of encoder.unit()
//     for (...) stream.push(values, n);               // in linear order, any n
//     stream.finish();                                // after the values up to end
//   });
#include <mutex>
#include <new>
#include <vector>
#include "chunk.h"
namespace mesa {

// Floats from the beginning of a cache line on: whole vectors then never straddle two lines.
template <class T>
struct LineAllocator {
  using value_type = T;
  LineAllocator() = default;
  template <class U>
  LineAllocator(const LineAllocator<U>&) {}
  T* allocate(size_t n) { return (T*)::operator new(n * sizeof(T), std::align_val_t(64)); }
  void deallocate(T* p, size_t) { ::operator delete(p, std::align_val_t(64)); }
  bool operator==(const LineAllocator&) const { return true; }
};
using Floats = std::vector<float, LineAllocator<float>>;

// A tensor viewed [outer, groups, inner] and how it is coded.
struct Layout {
  int64_t outer, groups, inner;
  int bits;
  int64_t block_size;  // 0: one range a group
  int64_t numel() const { return outer * groups * inner; }
  int64_t period() const { return groups * inner; }
  int64_t blocks() const { return (numel() + block_size - 1) / block_size; }
  int64_t code_bytes() const { return (numel() * bits + 7) / 8; }
  float qmax() const { return (float)((1 << bits) - 1); }
};

// Which range each value has, given one a group. Short groups: tables with an entry for each value of one period
// (repeated while that is short), so that few steps cover a chunk. Long groups: runs.
struct GroupSteps {
  GroupSteps() = default;
  GroupSteps(const Layout& layout, const float* ranges);
  int64_t inner = 1, groups = 1;
  int64_t table = 0;   // length of the tables, a multiple of strips; 0: runs
  int64_t strips = 0;  // the least multiple of the period and of kStrip
  std::vector<Step> steps;  // one a group
  Floats lo, step, inv;
};

// Collects the finite range of each group from pieces of a tensor: one thread's share.
class RangeStream {
 public:
  RangeStream(int64_t groups, int64_t inner);
  // The n values with linear index first, first + 1, ...
  void push(int64_t first, const float* x, int64_t n);
  // Ranges already collected: kStrip of one group, or one for each of n values from the beginning of a table on. False,
  // and nothing done, when an infinity is among them: then push the values themselves.
  bool absorb_strip(int64_t group, const float* lo, const float* hi);
  bool absorb_strips(const float* lo, const float* hi, int64_t n);
  // Widen out [groups, 2], which other threads widen too.
  void finish(std::mutex& mutex, float* out);

 private:
  int64_t groups_, inner_, table_;
  Floats lo_, hi_;  // an entry of the table each, or a group each
};

class Encoder {
 public:
  // ranges: [groups, 2], read, when block_size is 0. found: float [groups, 2] (set to (inf, -inf), then this tensor's
  // own) or bfloat16 [blocks, 2]. codes: [code_bytes].
  Encoder(const Layout& layout, const float* ranges, void* found, uint8_t* codes, uint64_t seed, bool stochastic);
  // A thread's share begins at a multiple of this many values.
  int64_t unit() const { return layout_.block_size ? layout_.block_size : kStrip; }

 private:
  friend class EncodeStream;
  Layout layout_;
  void* found_;
  uint8_t* codes_;
  uint64_t seed_;
  bool stochastic_;
  GroupSteps steps_;
  std::mutex mutex_;
};

class EncodeStream {
 public:
  EncodeStream(Encoder& encoder, int64_t first);
  void push(const float* x, int64_t n);
  // Encodes what is left (less than a unit only at the tensor's end) and hands in the ranges.
  void finish();

 private:
  void encode(const float* x, int64_t n);
  void encode_blocks(const float* x, int64_t n, uint8_t* codes);
  void encode_table(const float* x, int64_t n, uint8_t* codes);
  void encode_runs(const float* x, int64_t n, uint8_t* codes);
  // The plain way, for any piece: random bits, codes with the ranges given, and the values' own range.
  template <class EncodeWith>
  void encode_piece(int64_t first, const float* x, int64_t n, const EncodeWith& encode_with);
  void encode_run(int64_t group, int64_t first, const float* x, int64_t n, uint8_t* codes);

  static constexpr int64_t kLongestStrips = kChunk / 4;
  Encoder& encoder_;
  int64_t next_;  // linear index of the next value to encode
  int64_t pending_ = 0;
  RangeStream ranges_;
  alignas(64) float pending_values_[kChunk];
  alignas(64) float strip_lo_[kLongestStrips], strip_hi_[kLongestStrips];
};

class Decoder {
 public:
  // ranges: float [groups, 2], or bfloat16 [blocks, 2] when block_size is not 0.
  Decoder(const Layout& layout, const uint8_t* codes, const void* ranges);
  // The float32 values with linear index first, first + 1, ...: any first, any n. May be called by many threads.
  void run(int64_t first, int64_t n, float* out) const;
  // For callers that look values up in a table of their own: the codes, one a byte, and the step of one value.
  void codes(int64_t first, int64_t n, uint8_t* out) const;
  Step step_of(int64_t index) const;

 private:
  void decode(int64_t first, int64_t n, float* out) const;
  Layout layout_;
  const uint8_t* codes_;
  const uint16_t* block_ranges_ = nullptr;
  GroupSteps steps_;
};

}  // namespace mesa
