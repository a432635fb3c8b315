#include "coding.h"

#include <string.h>

#include <algorithm>

namespace mesa {
namespace {

constexpr float kInf = __builtin_inff();

// Groups shorter than this are handled through tables, as long as these stay small.
constexpr int64_t kShortGroup = 256, kLongestPeriod = 4096;

// Length of tables that repeat the period to at least a chunk; 0 where groups are handled as runs.
int64_t table_length(int64_t groups, int64_t inner) {
  const int64_t period = groups * inner;
  if (groups < 2 || period == 0 || inner >= kShortGroup || period > kLongestPeriod) return 0;
  return (kChunk + period - 1) / period * period;
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
    : inner(layout.inner), groups(layout.groups), table(table_length(layout.groups, layout.inner)) {
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

RangeStream::RangeStream(int64_t groups, int64_t inner, int64_t first)
    : groups_(groups), inner_(inner), table_(table_length(groups, inner)) {
  if (groups == 0 || inner == 0) return;
  if (table_) {
    position_ = first % table_;
  } else {
    group_ = first / inner % groups;
    position_ = first % inner;
  }
  lo_.assign((size_t)(table_ ? table_ : groups), kInf);
  hi_.assign((size_t)(table_ ? table_ : groups), -kInf);
  std::fill_n(lanes_lo_, kLanes, kInf);
  std::fill_n(lanes_hi_, kLanes, -kInf);
}

void RangeStream::close_run() {
  float lo, hi;
  reduce_lanes(lanes_lo_, lanes_hi_, lo, hi);
  lo_[(size_t)group_] = std::min(lo_[(size_t)group_], lo);
  hi_[(size_t)group_] = std::max(hi_[(size_t)group_], hi);
}

void RangeStream::push(const float* x, int64_t n) {
  const int64_t length = table_ ? table_ : inner_;
  while (n > 0) {
    const int64_t m = std::min(length - position_, n);
    if (table_)
      range_chunk(x, m, &lo_[(size_t)position_], &hi_[(size_t)position_]);
    else
      range_lanes(x, m, lanes_lo_, lanes_hi_);
    x += m;
    n -= m;
    position_ += m;
    if (position_ == length) {
      position_ = 0;
      if (!table_) {
        close_run();
        if (++group_ == groups_) group_ = 0;
      }
    }
  }
}

void RangeStream::finish(std::mutex& mutex, float* out) {
  if (lo_.empty()) return;
  if (!table_) close_run();
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
      ranges_(encoder.layout_.block_size ? 0 : encoder.layout_.groups, encoder.layout_.inner, first) {}

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
  const float qmax = layout.qmax();
  alignas(64) uint16_t words[kChunk];
  alignas(64) uint8_t unpacked[kChunk];
  if (encoder_.stochastic_) fill_random(encoder_.seed_, (uint64_t)next_, n, words);
  uint8_t* packed = encoder_.codes_ + next_ * layout.bits / 8;
  uint8_t* codes = layout.bits == 8 ? packed : unpacked;
  const auto random = [&](int64_t offset) { return encoder_.stochastic_ ? words + offset : nullptr; };

  if (layout.block_size) {
    uint16_t* found = (uint16_t*)encoder_.found_ + next_ / layout.block_size * 2;
    for (int64_t i = 0; i < n; i += layout.block_size, found += 2) {
      const int64_t m = std::min(layout.block_size, n - i);
      float lo = kInf, hi = -kInf;
      range_chunk(x + i, m, lo, hi);
      found[0] = lo > hi ? 0 : bf16_floor(lo);
      found[1] = lo > hi ? 0 : bf16_ceil(hi);
      encode_chunk(x + i, m, make_step(bf16_float(found[0]), bf16_float(found[1]), qmax), random(i), qmax, codes + i);
    }
  } else {
    const GroupSteps& s = encoder_.steps_;
    ranges_.push(x, n);
    if (s.table) {
      for_table(s.table, next_, n, [&](int64_t at, int64_t i, int64_t m) {
        encode_chunk(x + i, m, &s.lo[(size_t)at], &s.inv[(size_t)at], random(i), qmax, codes + i);
      });
    } else {
      for_runs(s.groups, s.inner, next_, n, [&](int64_t g, int64_t i, int64_t m) {
        encode_chunk(x + i, m, s.steps[(size_t)g], random(i), qmax, codes + i);
      });
    }
  }
  if (layout.bits != 8) pack_codes(unpacked, n, layout.bits, packed);
  next_ += n;
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
