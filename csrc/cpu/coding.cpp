#include "coding.h"

#include <string.h>

#include <algorithm>
#include <numeric>

namespace mesa {
namespace {

constexpr float kInf = __builtin_inff();

// Groups shorter than this are handled through tables, as long as these stay small.
constexpr int64_t kShortGroup = 256, kShortTable = 256, kLongestPeriod = 16384;

// Periods that make whole strips; 0 where groups are handled as runs.
int64_t whole_strips(int64_t groups, int64_t inner) {
  if (groups < 2 || inner == 0 || inner >= kShortGroup || inner > kLongestPeriod / groups) return 0;
  const int64_t whole = std::lcm(groups * inner, kStrip);
  return whole > kLongestPeriod ? 0 : whole;
}

// Length of tables: that, repeated while it is short, so that they are passed over in few steps.
int64_t table_length(int64_t groups, int64_t inner) {
  const int64_t whole = whole_strips(groups, inner);
  return whole ? (kShortTable + whole - 1) / whole * whole : 0;
}

// Calls f(group, offset, length) for the runs of one group each that n values from linear index first on fall into.
template <class F>
void for_runs(int64_t groups, int64_t inner, int64_t first, int64_t n, F&& f) {
  int64_t group = first / inner % groups, within = first % inner;
  for (int64_t done = 0; done < n;) {
    const int64_t m = std::min(inner - within, n - done);
    f(group, done, m);
    done += m;
    within = 0;
    if (++group == groups) group = 0;
  }
}

// Calls f(position in the table, offset, length).
template <class F>
void for_table(int64_t table, int64_t first, int64_t n, F&& f) {
  int64_t position = first % table;
  for (int64_t done = 0; done < n; position = 0) {
    const int64_t m = std::min(table - position, n - done);
    f(position, done, m);
    done += m;
  }
}

}  // namespace

GroupSteps::GroupSteps(const Layout& layout, const float* ranges)
    : inner(layout.inner), groups(layout.groups), table(table_length(layout.groups, layout.inner)),
      strips(whole_strips(layout.groups, layout.inner)) {
  for (int64_t g = 0; g < groups; ++g) steps.push_back(make_step(ranges[2 * g], ranges[2 * g + 1], layout.qmax()));
  lo.resize((size_t)table), step.resize((size_t)table), inv.resize((size_t)table);
  for (int64_t i = 0; i < table; i += inner) {
    const Step s = steps[(size_t)(i / inner % groups)];
    std::fill_n(&lo[(size_t)i], inner, s.lo);
    std::fill_n(&step[(size_t)i], inner, s.step);
    std::fill_n(&inv[(size_t)i], inner, s.inv);
  }
}

// --- RangeStream -----------------------------------------------------------------------------------------------------

RangeStream::RangeStream(int64_t groups, int64_t inner)
    : groups_(groups), inner_(inner), table_(table_length(groups, inner)) {
  lo_.assign((size_t)(table_ ? table_ : groups), kInf);
  hi_.assign((size_t)(table_ ? table_ : groups), -kInf);
}

void RangeStream::push(int64_t first, const float* x, int64_t n) {
  if (!table_) {
    for_runs(groups_, inner_, first, n, [&](int64_t g, int64_t i, int64_t m) {
      range_chunk(x + i, m, lo_[(size_t)g], hi_[(size_t)g]);
    });
    return;
  }
  for (int64_t at = first % table_; n > 0; at = 0) {
    int64_t m = std::min(n, table_ - at);
    const int64_t rows = at == 0 ? std::min(n, kChunk) / table_ : 0;  // as many as the first-level cache holds
    if (rows > 3) {  // a strip of columns is left and taken up again for each piece: fewer do not pay
      m = rows * table_;
      range_rows(x, rows, table_, lo_.data(), hi_.data());
      prefetch(x + m, std::min(m, n - m));
    } else {
      range_chunk(x, m, &lo_[(size_t)at], &hi_[(size_t)at]);
    }
    x += m;
    n -= m;
  }
}

bool RangeStream::absorb_strip(int64_t group, const float* lo, const float* hi) {
  if (any_infinite(lo, hi, kStrip)) return false;
  range_fold(lo, hi, lo_[(size_t)group], hi_[(size_t)group]);
  return true;
}

bool RangeStream::absorb_strips(const float* lo, const float* hi, int64_t n) {
  if (any_infinite(lo, hi, n)) return false;
  range_union(lo, hi, n, lo_.data(), hi_.data());
  return true;
}

void RangeStream::finish(std::mutex& mutex, float* out) {
  std::lock_guard<std::mutex> lock(mutex);
  for (int64_t i = 0; i < (int64_t)lo_.size(); ++i) {
    const int64_t g = table_ ? i / inner_ % groups_ : i;
    out[2 * g] = std::min(out[2 * g], lo_[(size_t)i]);
    out[2 * g + 1] = std::max(out[2 * g + 1], hi_[(size_t)i]);
  }
}

// --- Encoder -----------------------------------------------------------------------------------------------------------

Encoder::Encoder(const Layout& layout, const float* ranges, void* found, uint8_t* codes, uint64_t seed, bool stochastic)
    : layout_(layout), found_(found), codes_(codes), seed_(seed), stochastic_(stochastic) {
  if (layout.block_size) return;
  steps_ = GroupSteps(layout, ranges);
  for (int64_t g = 0; g < layout.groups; ++g) {
    ((float*)found)[2 * g] = kInf;
    ((float*)found)[2 * g + 1] = -kInf;
  }
}

EncodeStream::EncodeStream(Encoder& encoder, int64_t first)
    : encoder_(encoder), next_(first),
      ranges_(encoder.layout_.block_size ? 0 : encoder.layout_.groups, encoder.layout_.inner) {}

void EncodeStream::push(const float* x, int64_t n) {
  const int64_t unit = encoder_.unit();
  if (pending_ > 0) {
    const int64_t m = std::min(unit - pending_, n);
    memcpy(pending_values_ + pending_, x, (size_t)m * 4);
    pending_ += m;
    x += m;
    n -= m;
    if (pending_ < unit) return;
    pending_ = 0;
    encode(pending_values_, unit);
  }
  const int64_t chunk = kChunk / unit * unit;
  for (; n >= unit; ) {
    const int64_t m = std::min(chunk, n / unit * unit);
    encode(x, m);
    x += m;
    n -= m;
  }
  memcpy(pending_values_, x, (size_t)n * 4);
  pending_ = n;
}

void EncodeStream::finish() {
  encode(pending_values_, pending_);
  pending_ = 0;
  if (!encoder_.layout_.block_size) ranges_.finish(encoder_.mutex_, (float*)encoder_.found_);
}

void EncodeStream::encode(const float* x, int64_t n) {
  if (n == 0) return;
  const Layout& layout = encoder_.layout_;
  alignas(64) uint8_t unpacked[kChunk];
  uint8_t* packed = encoder_.codes_ + next_ * layout.bits / 8;
  uint8_t* codes = layout.bits == 8 ? packed : unpacked;
  if (layout.block_size)
    encode_blocks(x, n, codes);
  else if (encoder_.steps_.table)
    encode_table(x, n, codes);
  else
    encode_runs(x, n, codes);
  if (layout.bits != 8) pack_codes(unpacked, n, layout.bits, packed);
  next_ += n;
}

void EncodeStream::encode_blocks(const float* x, int64_t n, uint8_t* codes) {
  const int64_t size = encoder_.layout_.block_size;
  const float qmax = encoder_.layout_.qmax();
  alignas(64) uint16_t random[kChunk];
  alignas(64) float lo[kChunk], inv[kChunk];  // of every value
  float block_lo[kChunk / 16], block_inv[kChunk / 16];
  prefetch(x + n, n / 2);  // the next chunk, in two portions: more at once would be dropped
  encode_ranges(x, n, size, qmax, (uint16_t*)encoder_.found_ + next_ / size * 2, block_lo, block_inv);
  prefetch(x + n + n / 2, n / 2);
  spread_blocks(block_lo, size, n, lo);
  spread_blocks(block_inv, size, n, inv);
  if (encoder_.stochastic_) fill_random(encoder_.seed_, (uint64_t)next_, n, random);
  encode_chunk(x, n, lo, inv, encoder_.stochastic_ ? random : nullptr, qmax, codes);
}

template <class EncodeWith>
void EncodeStream::encode_piece(int64_t first, const float* x, int64_t n, const EncodeWith& encode_with) {
  if (n == 0) return;
  alignas(64) uint16_t random[kChunk];
  if (encoder_.stochastic_) fill_random(encoder_.seed_, (uint64_t)first, n, random);
  encode_with(encoder_.stochastic_ ? random : nullptr);
  ranges_.push(first, x, n);
}

// Whether encode_strips takes values from linear index first on.
static bool strips_fit(int64_t first, int64_t n) { return first % 2 == 0 && first >> 33 == (first + n - 1) >> 33; }

void EncodeStream::encode_table(const float* x, int64_t n, uint8_t* codes) {
  const GroupSteps& s = encoder_.steps_;
  const float qmax = encoder_.layout_.qmax();
  int64_t done = 0;
  // Strips leave a range for each value of whole periods to be joined: they pay where a chunk has these several times.
  if (s.strips <= kLongestStrips && 4 * s.strips <= n && next_ % kStrip == 0 && strips_fit(next_, n)) {
    done = n / kStrip * kStrip;
    std::fill_n(strip_lo_, s.strips, kInf);
    std::fill_n(strip_hi_, s.strips, -kInf);
    encode_strips(x, done, s.lo.data(), s.inv.data(), s.strips, next_ % s.strips, encoder_.stochastic_, encoder_.seed_,
                  (uint64_t)next_, qmax, codes, strip_lo_, strip_hi_);
    if (!ranges_.absorb_strips(strip_lo_, strip_hi_, s.strips)) ranges_.push(next_, x, done);
  }
  encode_piece(next_ + done, x + done, n - done, [&](const uint16_t* random) {
    for_table(s.table, next_ + done, n - done, [&](int64_t at, int64_t i, int64_t m) {
      encode_chunk(x + done + i, m, &s.lo[(size_t)at], &s.inv[(size_t)at], random ? random + i : nullptr, qmax,
                   codes + done + i);
    });
  });
}

void EncodeStream::encode_runs(const float* x, int64_t n, uint8_t* codes) {
  const GroupSteps& s = encoder_.steps_;
  for_runs(s.groups, s.inner, next_, n, [&](int64_t g, int64_t i, int64_t m) {
    encode_run(g, next_ + i, x + i, m, codes + i);
  });
}

void EncodeStream::encode_run(int64_t group, int64_t first, const float* x, int64_t n, uint8_t* codes) {
  const Step s = encoder_.steps_.steps[(size_t)group];
  const float qmax = encoder_.layout_.qmax();
  int64_t done = 0;
  if (n >= 2 * kStrip && strips_fit(first, n)) {
    done = n / kStrip * kStrip;
    alignas(64) float lo[kStrip], inv[kStrip];
    std::fill_n(lo, kStrip, s.lo);
    std::fill_n(inv, kStrip, s.inv);
    std::fill_n(strip_lo_, kStrip, kInf);
    std::fill_n(strip_hi_, kStrip, -kInf);
    encode_strips(x, done, lo, inv, kStrip, 0, encoder_.stochastic_, encoder_.seed_, (uint64_t)first, qmax, codes,
                  strip_lo_, strip_hi_);
    if (!ranges_.absorb_strip(group, strip_lo_, strip_hi_)) ranges_.push(first, x, done);
  }
  encode_piece(first + done, x + done, n - done, [&](const uint16_t* random) {
    encode_chunk(x + done, n - done, s, random, qmax, codes + done);
  });
}

// --- Decoder -----------------------------------------------------------------------------------------------------------

Decoder::Decoder(const Layout& layout, const uint8_t* codes, const void* ranges) : layout_(layout), codes_(codes) {
  if (layout.block_size)
    block_ranges_ = (const uint16_t*)ranges;
  else
    steps_ = GroupSteps(layout, (const float*)ranges);
}

Step Decoder::step_of(int64_t index) const {
  if (!block_ranges_) return steps_.steps[(size_t)(index / layout_.inner % layout_.groups)];
  const uint16_t* range = block_ranges_ + index / layout_.block_size * 2;
  return make_step(bf16_float(range[0]), bf16_float(range[1]), layout_.qmax());
}

void Decoder::codes(int64_t first, int64_t n, uint8_t* out) const {
  const int bits = layout_.bits;
  for (; n > 0 && first * bits % 8; ++first, --n)  // up to the next whole byte
    *out++ = (uint8_t)(codes_[first * bits / 8] >> first * bits % 8 & ((1 << bits) - 1));
  unpack_codes(codes_ + first * bits / 8, n, bits, out);
}

void Decoder::run(int64_t first, int64_t n, float* out) const {
  for (; n > 0;) {
    const int64_t m = std::min(kChunk, n);
    decode(first, m, out);
    first += m;
    out += m;
    n -= m;
  }
}

void Decoder::decode(int64_t first, int64_t n, float* out) const {
  alignas(64) uint8_t unpacked[kChunk];
  const uint8_t* c = codes_ + first;
  if (layout_.bits != 8) {
    codes(first, n, unpacked);
    c = unpacked;
  }
  if (block_ranges_) {
    for (int64_t i = 0; i < n;) {
      const int64_t m = std::min(layout_.block_size - (first + i) % layout_.block_size, n - i);
      decode_chunk(c + i, m, step_of(first + i), out + i);
      i += m;
    }
  } else if (steps_.table) {
    for_table(steps_.table, first, n, [&](int64_t at, int64_t i, int64_t m) {
      decode_chunk(c + i, m, &steps_.lo[(size_t)at], &steps_.step[(size_t)at], out + i);
    });
  } else {
    for_runs(steps_.groups, steps_.inner, first, n, [&](int64_t g, int64_t i, int64_t m) {
      decode_chunk(c + i, m, steps_.steps[(size_t)g], out + i);
    });
  }
}

}  // namespace mesa
