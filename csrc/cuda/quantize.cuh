#pragma once
// Quantising and back. See codes.cuh for what the kernels share.
#include "codes.cuh"

namespace mesa {

// ---- what is encoded -----------------------------------------------------------------------------------------------
// The quantising kernels serve every operator that keeps codes: a Source says what is encoded of an element that was
// read, and what else is written for it.
//   Column column(index)                 what the run that begins at this linear index has in common
//   float value(column, raw)             what is encoded
//   void emit(column, index, raw, value) writes the rest of a whole run
//   void emit_some(index, raw, count)    the same for the first `count` elements of a run with nothing in common
//   float value_at(index, raw)           value() of one such element
struct Plain {
  static constexpr int kBlocksPerSm = 4;     // of quantize_groups_kernel; the others hold more in registers
  static constexpr bool kSameInRows = true;  // column() is the same in every row of quantize_groups_kernel
  struct Column {};
  __device__ __forceinline__ Column column(int64_t) const { return {}; }
  __device__ __forceinline__ float value(Column, float raw) const { return raw; }
  __device__ __forceinline__ float value_at(int64_t, float raw) const { return raw; }
  template <int V>
  __device__ __forceinline__ void emit(Column, int64_t, const float (&)[V], const float (&)[V]) const {}
  template <int V>
  __device__ __forceinline__ void emit_some(int64_t, const float (&)[V], int) const {}
};

// V values by 16-byte loads.
template <class T, int V>
struct Run {
  static constexpr int kPacks = V / kVector<T>;
  Pack<T, kVector<T>> p[kPacks];
  __device__ __forceinline__ void load(const T* x) {
    MESA_UNROLL
    for (int i = 0; i < kPacks; ++i) p[i] = load_pack<kVector<T>>(x + i * kVector<T>);
  }
  __device__ __forceinline__ float at(int k) const { return to_float(p[k / kVector<T>].v[k % kVector<T>]); }
};
template <class T, int V>
__device__ __forceinline__ void store_run(T* y, const float (&v)[V]) {
  MESA_UNROLL
  for (int i = 0; i < V / kVector<T>; ++i) {
    Pack<T, kVector<T>> p;
    MESA_UNROLL
    for (int k = 0; k < kVector<T>; ++k) p.v[k] = from_float<T>(v[i * kVector<T> + k]);
    store_pack<kVector<T>>(y + i * kVector<T>, p);
  }
}

// Ranges given for each group; this tensor's own are collected on the way. BITS 0: collected only.
// V values a thread and row: 16 bytes in, V*BITS/8 bytes out, both contiguous over a warp.
template <class T, int BITS, int V, class Source>
__global__ void __launch_bounds__(kCodeThreads, Source::kBlocksPerSm)
    quantize_groups_kernel(const T* __restrict__ x, View3 view, Columns plan, const float* __restrict__ ranges,
                           Rounding rounding, uint8_t* __restrict__ codes, float* observed, Source source) {
  constexpr int kFlight = kRunElements / V;
  MESA_SHARED(int, table, 2 * kTableGroups);
  table_clear(table, view.groups);
  Offsets offsets(rounding);
  for (int64_t pass = 0; pass < plan.passes; ++pass) {
    const Place at = place_of(plan, pass);
    const int64_t group = at.valid ? divide(at.column * V, view.inner).quotient : -1;
    Range range;
    if (at.valid) {
      const T* p = x + group * view.group_stride + (at.column * V - group * view.inner);
      Step step{};
      if (BITS) step = make_step(ranges[2 * group], ranges[2 * group + 1], kTopCode<BITS>);
      typename Source::Column column;
      if constexpr (Source::kSameInRows) column = source.column(at.column * V);
      p += at.row * view.outer_stride;
      const int64_t jump = plan.row_lanes * plan.columns * V, jump_in = plan.row_lanes * view.outer_stride;
      const int64_t n = plan.rows * plan.columns * V;
      for (int64_t index = (at.row * plan.columns + at.column) * V; index < n; index += kFlight * jump) {
        Run<T, V> in[kFlight];
        MESA_UNROLL
        for (int j = 0; j < kFlight; ++j)
          if (index + j * jump < n) in[j].load(p + j * jump_in);
        p += kFlight * jump_in;
        MESA_UNROLL
        for (int j = 0; j < kFlight; ++j) {
          const int64_t i = index + j * jump;
          if (i >= n) break;
          if constexpr (!Source::kSameInRows) column = source.column(i);
          float raw[V], v[V];
          MESA_UNROLL
          for (int k = 0; k < V; ++k) {
            raw[k] = in[j].at(k);
            v[k] = source.value(column, raw[k]);
          }
          source.emit(column, i, raw, v);
          range.add(v);
          if constexpr (BITS > 0) {
            float u[V];
            uint32_t c[V];
            offsets.get(i, u);
            MESA_UNROLL
            for (int k = 0; k < V; ++k) c[k] = encode_device(v[k], step, u[k], kTopCode<BITS>);
            store_codes<BITS>(codes + i * BITS / 8, c);
          }
        }
      }
    }
    table_add_warp(table, observed, view.groups, group, range);
  }
  table_flush(table, observed, view.groups);
}

// The same for any strides and sizes, 8 values a thread, loaded one by one.
template <class T, class Source>
__global__ void __launch_bounds__(kCodeThreads, 3)
    quantize_groups_any_kernel(const T* __restrict__ x, View3 view, int64_t n, int bits,
                               const float* __restrict__ ranges, Rounding rounding, uint8_t* __restrict__ codes,
                               float* observed, Source source) {
  MESA_SHARED(int, table, 2 * kTableGroups);
  table_clear(table, view.groups);
  Offsets offsets(rounding);
  for (int64_t first = thread_index() * 8; first < n; first += thread_count() * 8) {
    const Quotient row = divide(first, view.inner), block = divide(row.quotient, view.groups);
    int64_t outer = block.quotient, group = block.remainder, i = row.remainder;
    float u[8], raw[8];
    uint32_t c[8] = {};
    offsets.get(first, u);
    Range range;
    const int count = n - first < 8 ? (int)(n - first) : 8;
    MESA_UNROLL
    for (int k = 0; k < 8; ++k) {
      raw[k] = 0.0f;
      if (k >= count) continue;
      raw[k] = to_float(x[outer * view.outer_stride + group * view.group_stride + i * view.inner_stride]);
      const float v = source.value_at(first + k, raw[k]);
      range.add(v);
      if (bits)
        c[k] = encode_device(v, make_step(ranges[2 * group], ranges[2 * group + 1], top_code(bits)), u[k],
                             top_code(bits));
      if (++i == view.inner) {
        table_add(table, observed, view.groups, group, range);
        range = Range();
        i = 0;
        if (++group == view.groups) {
          group = 0;
          ++outer;
        }
      }
    }
    if (i) table_add(table, observed, view.groups, group, range);
    source.emit_some(first, raw, count);
    if (bits) store_codes_until(codes + first * bits / 8, c, count, bits);
  }
  table_flush(table, observed, view.groups);
}

// A block of values to a team of `team` neighbouring lanes (a power of two); a lane holds RUNS runs of V values in
// registers between finding the range and encoding.
template <class T, int BITS, int V, int RUNS, class Source>
__global__ void __launch_bounds__(kCodeThreads, RUNS * V > kRunElements ? Source::kBlocksPerSm - 2 : Source::kBlocksPerSm - 1)
    quantize_blocks_kernel(const T* __restrict__ x, View3 view, bool contiguous, int64_t n, int block_size, int team,
                           Rounding rounding, uint8_t* __restrict__ codes, uint32_t* __restrict__ ranges,
                           Source source) {
  const int lane = lane_id(), member = lane & (team - 1), teams = 32 / team;
  const int64_t blocks = (n + block_size - 1) / block_size;
  const int64_t step_blocks = thread_count() / 32 * teams;
  Offsets offsets(rounding);
  // Whole warps stay in the loop together.
  for (int64_t first = thread_index() / 32 * teams; first < blocks; first += step_blocks) {
    const int64_t block = first + lane / team, start = block * block_size;
    const int64_t left = n - start;
    const int count = left <= 0 ? 0 : left < block_size ? (int)left : block_size;
    Run<T, V> in[RUNS];
    MESA_UNROLL
    for (int j = 0; j < RUNS; ++j) {
      const int at = (j * team + member) * V;
      if (at + V <= count) in[j].load(x + (contiguous ? start + at : offset_of(view, start + at)));
    }
    Range range;
    float v[RUNS][V];
    MESA_UNROLL
    for (int j = 0; j < RUNS; ++j) {
      const int at = (j * team + member) * V;
      float raw[V];
      if (at + V <= count) {
        const typename Source::Column column = source.column(start + at);
        MESA_UNROLL
        for (int k = 0; k < V; ++k) {
          raw[k] = in[j].at(k);
          v[j][k] = source.value(column, raw[k]);
        }
        source.emit(column, start + at, raw, v[j]);
      } else {  // Beyond the end: NaN, which no range counts and which becomes code 0. Only a contiguous x ends so.
        MESA_UNROLL
        for (int k = 0; k < V; ++k) {
          raw[k] = at + k < count ? to_float(x[start + at + k]) : NAN;
          v[j][k] = at + k < count ? source.value_at(start + at + k, raw[k]) : NAN;
        }
        if (at < count) source.emit_some(start + at, raw, count - at);
      }
      range.add(v[j]);
    }
    const uint32_t bits = block_range_bits(lanes_min(range.lo, team), lanes_max(range.hi, team));
    const Step step = block_step(bits, kTopCode<BITS>);
    if (member == 0 && count > 0) ranges[block] = bits;
    MESA_UNROLL
    for (int j = 0; j < RUNS; ++j) {
      const int at = (j * team + member) * V;
      if (at >= count) break;
      float u[V];
      uint32_t c[V];
      offsets.get(start + at, u);
      MESA_UNROLL
      for (int k = 0; k < V; ++k) c[k] = encode_device(v[j][k], step, u[k], kTopCode<BITS>);
      uint8_t* out = codes + (start + at) * BITS / 8;
      if (at + V <= count) {
        store_codes<BITS>(out, c);
      } else {
        store_codes_until(out, c, count - at, BITS);
      }
    }
  }
}

// The same for any strides, a block to a warp, every value read twice.
template <class T, class Source>
__global__ void __launch_bounds__(kCodeThreads, 3)
    quantize_blocks_any_kernel(const T* __restrict__ x, View3 view, int64_t n, int block_size, int bits, Rounding rounding,
                               uint8_t* __restrict__ codes, uint32_t* __restrict__ ranges, Source source) {
  const int lane = lane_id();
  const int64_t blocks = (n + block_size - 1) / block_size;
  Offsets offsets(rounding);
  for (int64_t block = thread_index() / 32; block < blocks; block += thread_count() / 32) {
    const int64_t start = block * block_size, end = start + block_size < n ? start + block_size : n;
    Range range;
    for (int64_t i = start + lane; i < end; i += 32) range.add(source.value_at(i, to_float(x[offset_of(view, i)])));
    const uint32_t found = block_range_bits(lanes_min(range.lo), lanes_max(range.hi));
    const Step step = block_step(found, top_code(bits));
    if (lane == 0) ranges[block] = found;
    for (int64_t i = start + 8 * lane; i < end; i += 8 * 32) {
      const int count = end - i < 8 ? (int)(end - i) : 8;
      float u[8], raw[8];
      uint32_t c[8];
      offsets.get(i, u);
      MESA_UNROLL
      for (int k = 0; k < 8; ++k) {
        raw[k] = k < count ? to_float(x[offset_of(view, i + k)]) : 0.0f;
        c[k] = k < count ? encode_device(source.value_at(i + k, raw[k]), step, u[k], top_code(bits)) : 0;
      }
      source.emit_some(i, raw, count);
      store_codes_until(codes + i * bits / 8, c, count, bits);
    }
  }
}

// ---- launching them ------------------------------------------------------------------------------------------------
// Whether runs of V values fit the tensor: each aligned, and in one group.
template <class T, int V>
bool runs_fit(const T* x, const View3& v) {
  constexpr int A = kVector<T>;
  return aligned16(x) && v.inner_stride == 1 && v.inner % V == 0 && (v.groups == 1 || v.group_stride % A == 0) &&
         (v.outer == 1 || v.outer_stride % A == 0);
}

// `runs`: whether the source has whole runs, too.
template <class T, int BITS, int V, class Source>
void quantize_in_groups(const T* x, const View3& v, const float* ranges, Rounding rounding, uint8_t* codes,
                        float* observed, bool runs, const Source& source, void* stream) {
  const int64_t n = v.outer * v.groups * v.inner;
  const dim3 threads(kCodeThreads);
  if (runs && runs_fit<T, V>(x, v)) {
    const Columns plan = plan_columns(v.outer, v.groups * v.inner / V);
    MESA_LAUNCH((quantize_groups_kernel<T, BITS, V, Source>), dim3(plan.blocks), threads, 0, stream, x, v, plan,
                ranges, rounding, codes, observed, source);
    return;
  }
  MESA_LAUNCH((quantize_groups_any_kernel<T, Source>), dim3(grid_for(n, 8 * kCodeThreads)), threads, 0, stream, x, v, n,
              BITS, ranges, rounding, codes, observed, source);
}

template <class T, int BITS, int V, class Source>
void quantize_in_blocks(const T* x, const View3& v, int block_size, Rounding rounding, uint8_t* codes, uint32_t* ranges,
                        bool runs, const Source& source, void* stream) {
  constexpr int kFew = kRunElements / V, kMany = 1024 / (32 * V);  // runs a lane
  const int64_t n = v.outer * v.groups * v.inner, blocks = ceil_div(n, block_size);
  const bool contiguous = is_contiguous(v);
  const dim3 threads(kCodeThreads);
  if (!runs || !(contiguous ? aligned16(x) : runs_fit<T, V>(x, v))) {
    MESA_LAUNCH((quantize_blocks_any_kernel<T, Source>), dim3(grid_for(blocks, kCodeThreads / 32)), threads, 0, stream, x,
                v, n, block_size, BITS, rounding, codes, ranges, source);
    return;
  }
  int team = 1;
  while (team < 32 && team * kRunElements < block_size) team *= 2;
  const dim3 grid(grid_for(blocks, kCodeThreads / team));
  if (team * kRunElements >= block_size) {
    MESA_LAUNCH((quantize_blocks_kernel<T, BITS, V, kFew, Source>), grid, threads, 0, stream, x, v, contiguous, n,
                block_size, team, rounding, codes, ranges, source);
  } else {
    MESA_LAUNCH((quantize_blocks_kernel<T, BITS, V, kMany, Source>), grid, threads, 0, stream, x, v, contiguous, n,
                block_size, team, rounding, codes, ranges, source);
  }
}

// ---- back to values ------------------------------------------------------------------------------------------------
// The other way round, a Sink says what becomes of a decoded value:
//   Column column(index)             what the run that begins at this linear index has in common, the same in every row
//   void load(input, index)          what else is read for a whole run (before it is used: several are in flight)
//   void run(column, input, index, v)  takes a whole run
//   void one(index, v)               takes one element
//   kBlocksPerSm, kBlocksPerSmInBlocks  blocks of a multiprocessor, with a range a group and with ranges of blocks
// The tensor is taken as rows of plan.columns * V values, such that a column lies in one group (where BLOCKS is false);
// n cuts the last row off.
template <int BITS, bool BLOCKS, int V, class Sink>
__global__ void __launch_bounds__(kCodeThreads, BLOCKS ? Sink::kBlocksPerSmInBlocks : Sink::kBlocksPerSm)
    decode_kernel(const uint8_t* __restrict__ codes, const void* __restrict__ ranges, int64_t inner, BlockIndex blocks,
                  Columns plan, int64_t n, Sink sink) {
  constexpr int kFlight = kRunElements / V;
  for (int64_t pass = 0; pass < plan.passes; ++pass) {
    const Place at = place_of(plan, pass);
    if (!at.valid) continue;
    Step step{};
    if (!BLOCKS) {
      const float* r = static_cast<const float*>(ranges) + 2 * divide(at.column * V, inner).quotient;
      step = make_step(r[0], r[1], kTopCode<BITS>);
    }
    const typename Sink::Column column = sink.column(at.column * V);
    const int64_t jump = plan.row_lanes * plan.columns * V;
    for (int64_t first = (at.row * plan.columns + at.column) * V; first < n; first += kFlight * jump) {
      Pack<uint8_t, V * BITS / 8> in[kFlight];
      typename Sink::Input input[kFlight];
      uint32_t range[kFlight];
      MESA_UNROLL
      for (int j = 0; j < kFlight; ++j) {
        const int64_t index = first + j * jump;
        if (index + V <= n) {
          in[j] = load_codes<BITS, V>(codes + index * BITS / 8);
          if (BLOCKS) range[j] = static_cast<const uint32_t*>(ranges)[blocks.of(index)];
          sink.load(input[j], index);
        }
      }
      MESA_UNROLL
      for (int j = 0; j < kFlight; ++j) {
        const int64_t index = first + j * jump;
        if (index >= n) break;
        if (index + V <= n) {
          if (BLOCKS) step = block_step(range[j], kTopCode<BITS>);
          float v[V];
          MESA_UNROLL
          for (int k = 0; k < V; ++k) v[k] = decode(code_of<BITS, V>(in[j], k), step);
          sink.run(column, input[j], index, v);
        } else {
          if (BLOCKS) step = block_step(static_cast<const uint32_t*>(ranges)[blocks.of(index)], kTopCode<BITS>);
          for (int64_t i = index; i < n; ++i) sink.one(i, decode(code_at(codes, i, BITS), step));
        }
      }
    }
  }
}

// The same, one value a thread, for groups and channels that fit no run.
template <class Sink>
__global__ void __launch_bounds__(kCodeThreads, 4)
    decode_any_kernel(const uint8_t* __restrict__ codes, const void* __restrict__ ranges, int64_t groups, int64_t inner,
                      BlockIndex blocks, int64_t n, int bits, Sink sink) {
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    Step step;
    if (blocks.size) {
      step = block_step(static_cast<const uint32_t*>(ranges)[blocks.of(i)], top_code(bits));
    } else {
      const float* r = static_cast<const float*>(ranges) + 2 * divide(divide(i, inner).quotient, groups).remainder;
      step = make_step(r[0], r[1], top_code(bits));
    }
    sink.one(i, decode(code_at(codes, i, bits), step));
  }
}

// Values of a row in which columns keep their group and the sink's column (which repeats after `period` values; 0: has
// none); 0 where there is no such row.
inline int64_t row_length(int64_t n, int64_t groups, int64_t inner, bool blocks, int64_t period, int V) {
  if (!blocks) {
    const int64_t row = groups * inner;
    return inner % V == 0 && (!period || row % period == 0) ? row : 0;
  }
  if (period) return period % V == 0 ? period : 0;
  return ceil_div(ceil_div(n, kRowsInFlight), 32 * V) * 32 * V;
}

// `runs`: whether whole runs of the sink's tensors are aligned.
template <int BITS, int V, class Sink>
void decode_into(const uint8_t* codes, const Coding& coding, int64_t outer, int64_t groups, int64_t inner,
                 int64_t period, bool runs, const Sink& sink, void* stream) {
  const int64_t n = outer * groups * inner;
  const BlockIndex blocks = block_index(coding.block_size);
  const int64_t row = row_length(n, groups, inner, coding.block_size != 0, period, V);
  const dim3 threads(kCodeThreads);
  if (!row || !runs || (uintptr_t)codes % 8) {
    MESA_LAUNCH((decode_any_kernel<Sink>), dim3(grid_for(n, kCodeThreads)), threads, 0, stream, codes,
                coding.ranges, groups, inner, blocks, n, BITS, sink);
    return;
  }
  const Columns plan = plan_columns(ceil_div(n, row), row / V);
  if (coding.block_size) {
    MESA_LAUNCH((decode_kernel<BITS, true, V, Sink>), dim3(plan.blocks), threads, 0, stream, codes, coding.ranges, inner,
                blocks, plan, n, sink);
  } else {
    MESA_LAUNCH((decode_kernel<BITS, false, V, Sink>), dim3(plan.blocks), threads, 0, stream, codes, coding.ranges,
                inner, blocks, plan, n, sink);
  }
}

}  // namespace mesa
