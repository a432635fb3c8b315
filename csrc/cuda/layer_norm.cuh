#pragma once
// LayerNorm that encodes x^ = (x - mean) / sigma, and its backward from the codes. A row belongs to a team of
// neighbouring lanes, or several, which keep it in registers: x is read once.
#include "../common/row_order.h"
#include "quantize.cuh"

namespace mesa {

constexpr int kRowThreads = 128, kLongestRow = 4096;

// ---- forward -------------------------------------------------------------------------------------------------------
// Pieces as row_order.h has them, each of a team of lanes that hold `runs` runs of V channels.
struct Rows {
  int64_t rows;
  int channels, pieces, length, team, runs;
  int at_once;  // rows of a thread block
  bool in_a_warp() const { return pieces <= 2; }
};
inline Rows plan_rows(int64_t rows, int64_t channels, int V) {
  const RowOrder order = row_order(channels);
  const int team = order.width / V;
  return {rows, (int)channels, (int)order.pieces, (int)order.length, team, (int)ceil_div(order.length, order.width),
          (int)(kRowThreads / (order.pieces * team))};
}

// Sum of a team's accumulators; every lane gets it.
template <int V>
__device__ __forceinline__ float team_sum(const float (&a)[V], int team) {
  float s = (a[0] + a[2]) + (a[1] + a[3]);
  if (V == 8) s += (a[V - 4] + a[V - 2]) + (a[V - 3] + a[V - 1]);
  if (V == 4) s += __shfl_xor_sync(kFullWarp, s, 1);
  for (int o = team >> 1; o > (V == 4); o >>= 1) s += __shfl_xor_sync(kFullWarp, s, o);
  return s;
}

constexpr int kStatsRun = 4;
// Statistics of a row of any length and stride, a team a row.
template <class T>
__global__ void __launch_bounds__(kCodeThreads)
    layer_norm_stats_kernel(const T* __restrict__ x, int64_t rows, int64_t channels, RowOrder order, int64_t row_stride,
                            int64_t channel_stride, float eps, float* __restrict__ mean, float* __restrict__ rstd) {
  constexpr int V = kStatsRun;
  const int team = order.width / V, lane = lane_id(), member = lane & (team - 1), teams = 32 / team;
  // Whole warps stay in the loop together.
  for (int64_t first = thread_index() / 32 * teams; first < rows; first += thread_count() / 32 * teams) {
    const int64_t row = first + lane / team;
    const bool valid = row < rows;
    const T* p = x + row * row_stride;
    float m = 0.0f, r = 0.0f;
    for (int squares = 0; squares < 2; ++squares) {
      float sum = 0.0f;
      for (int64_t begin = 0; begin < channels; begin += order.length) {
        const int64_t end = begin + order.length < channels ? begin + order.length : channels;
        float a[V] = {};
        for (int64_t c = begin + member * V; valid && c < end; c += order.width) {
          MESA_UNROLL
          for (int k = 0; k < V; ++k) {
            if (c + k >= end) break;
            const float v = to_float(p[(c + k) * channel_stride]) - m;
            a[k] += squares ? v * v : v;
          }
        }
        sum += team_sum(a, team);
      }
      if (squares) {
        r = 1.0f / sqrtf(sum / (float)channels + eps);
      } else {
        m = sum / (float)channels;
      }
    }
    if (valid && member == 0) {
      mean[row] = m;
      rstd[row] = r;
    }
  }
}

// The same where rows have many pieces: a block a row, a team a piece.
template <class T, bool VECTOR>
__global__ void __launch_bounds__(kCodeThreads, VECTOR ? 2 : 1)
    layer_norm_long_stats_kernel(const T* __restrict__ x, int64_t rows, int64_t channels, RowOrder order,
                                 int64_t row_stride, int64_t channel_stride, float eps, float* __restrict__ mean,
                                 float* __restrict__ rstd) {
  constexpr int V = VECTOR ? kVector<T> : kStatsRun, kTeam = kWidest / V, kTeams = kCodeThreads / kTeam;
  MESA_SHARED(float, sums, 2 * kTeams);
  const int team = threadIdx.x / kTeam, member = threadIdx.x % kTeam;
  int turn = 0;  // between two places: one barrier a sum
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* p = x + row * row_stride;
    float m = 0.0f, r = 0.0f;
    for (int squares = 0; squares < 2; ++squares) {
      float sum = 0.0f;
      for (int64_t piece = 0; piece < order.pieces; piece += kTeams, turn ^= 1) {
        const int64_t begin = (piece + team) * order.length;
        const int64_t end = begin + order.length < channels ? begin + order.length : channels;
        float v[kMostEach][V], a[V] = {};
        MESA_UNROLL
        for (int j = 0; j < kMostEach; ++j) {
          const int64_t c = begin + (j * kTeam + member) * V;
          if (VECTOR) {
            Run<T, VECTOR ? V : kVector<T>> in;
            if (c >= end) break;
            in.load(p + c);
            MESA_UNROLL
            for (int k = 0; k < V; ++k) v[j][k] = in.at(k);
          } else {
            MESA_UNROLL
            for (int k = 0; k < V; ++k) {
              if (c + k < end) v[j][k] = to_float(p[(c + k) * channel_stride]);
            }
          }
        }
        MESA_UNROLL
        for (int j = 0; j < kMostEach; ++j) {
          const int64_t c = begin + (j * kTeam + member) * V;
          MESA_UNROLL
          for (int k = 0; k < V; ++k) {
            if (c + k >= end) break;
            a[k] += squares ? (v[j][k] - m) * (v[j][k] - m) : v[j][k];
          }
        }
        const float s = team_sum(a, kTeam);
        if (member == 0) sums[turn * kTeams + team] = s;
        __syncthreads();
        for (int t = 0; t < kTeams && piece + t < order.pieces; ++t) sum += sums[turn * kTeams + t];
      }
      if (squares) {
        r = 1.0f / sqrtf(sum / (float)channels + eps);
      } else {
        m = sum / (float)channels;
      }
    }
    if (threadIdx.x == 0) {
      mean[row] = m;
      rstd[row] = r;
    }
  }
}

// V values of shared memory at a multiple of V. Where they are two vectors, half of the lanes take the second one
// first: eight lanes then use all banks.
template <int V, class S>
__device__ __forceinline__ void put(const S& shared, int at, const float (&v)[V]) {
  const float4 a = make_float4(v[0], v[1], v[2], v[3]), b = make_float4(v[V - 4], v[V - 3], v[V - 2], v[V - 1]);
  const int second = V == 8 ? lane_id() >> 2 & 1 : 0;
  store4(shared, at + 4 * second, second ? b : a);
  if (V == 8) store4(shared, at + 4 - 4 * second, second ? a : b);
}
template <class S>
__device__ __forceinline__ void get(const S& shared, int at, float (&v)[8]) {
  const int second = lane_id() >> 2 & 1;
  const float4 p = load4(shared, at + 4 * second), q = load4(shared, at + 4 - 4 * second);
  const float4 a = second ? q : p, b = second ? p : q;
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// Encodes `count` values of shared memory, those from linear index `start` (the beginning of a block) on, a block to a
// team of neighbouring lanes.
template <class S>
__device__ __forceinline__ void encode_blocks(const S& values, int64_t start, int count, int block_size, int bits,
                                              Offsets& offsets, uint8_t* codes, uint32_t* ranges) {
  constexpr int V = 8;
  int team = 1;
  while (team < 32 && team * kRunElements < block_size) team *= 2;
  const int member = threadIdx.x & (team - 1), step = kRowThreads / team * block_size;
  const int64_t first_block = divide(start, block_size).quotient;
  const auto value = [&](int at, int end, float (&v)[V]) {  // beyond the end: NaN, which no range counts
    if (at + V <= end) {
      get(values, at, v);
    } else {
      MESA_UNROLL
      for (int k = 0; k < V; ++k) v[k] = at + k < end ? (float)values[at + k] : NAN;
    }
  };
  int block = threadIdx.x / team;
  for (int all = 0; all < count; all += step, block += kRowThreads / team) {  // whole warps together
    const int begin = block * block_size, end = begin + block_size < count ? begin + block_size : count;
    Range range;
    float v[V];
    for (int at = begin + member * V; at < end; at += team * V) {
      value(at, end, v);
      range.add(v);
    }
    const uint32_t found = block_range_bits(lanes_min(range.lo, team), lanes_max(range.hi, team));
    const Step s = block_step(found, top_code(bits));
    if (member == 0 && begin < end) ranges[first_block + block] = found;
    for (int at = begin + member * V; at < end; at += team * V) {
      const int64_t index = start + at;
      float u[V];
      uint32_t c[V];
      value(at, end, v);
      offsets.get(index, u);
      MESA_UNROLL
      for (int k = 0; k < V; ++k) c[k] = encode_device(v[k], s, u[k], top_code(bits));
      if (at + V <= end) {
        CodeRun<V> code;
        MESA_UNROLL
        for (int k = 0; k < V; ++k) code.set(k, c[k], bits);
        code.store(codes + index * bits / 8, bits);
      } else {
        store_codes_until(codes + index * bits / 8, c, end - at, bits);
      }
    }
  }
}

enum class Keep { statistics, groups, blocks };  // mean and 1/sigma, or codes with a range for each group or block

// WIDE: a row's pieces lie in several warps.
template <class T, Keep KEEP, int RUNS, bool WIDE>
__global__ void __launch_bounds__(kRowThreads, RUNS == kMostEach && sizeof(T) == 2 ? 3 : 4)
    layer_norm_rows_kernel(const T* __restrict__ x, int64_t row_stride, Rows plan, int64_t groups, int block_size,
                           const float* __restrict__ weight, const float* __restrict__ bias, float eps,
                           const float* __restrict__ ranges, int bits, Rounding rounding, T* __restrict__ y,
                           float* __restrict__ mean, float* __restrict__ rstd, uint8_t* __restrict__ codes,
                           void* observed) {
  constexpr int V = kVector<T>, kTeams = kRowThreads / (kWidest / V);
  MESA_SHARED(int, table, KEEP == Keep::groups ? 2 * kTableGroups : 1);
  MESA_SHARED(float, steps, KEEP == Keep::groups ? 2 * kTableGroups : 1);  // lo and inv of each group
  MESA_SHARED(float, sums, WIDE ? 2 * kTeams : 1);
  MESA_DYNAMIC_SHARED(float, normalised);  // with blocks: the rows at hand
  if (KEEP == Keep::groups) {
    for (int g = threadIdx.x; g < (int)groups; g += kRowThreads) {
      const Step step = make_step(ranges[2 * g], ranges[2 * g + 1], top_code(bits));
      steps[2 * g] = step.lo;
      steps[2 * g + 1] = step.inv;
    }
    table_clear(table, groups);
  }
  const int team = threadIdx.x / plan.team, member = threadIdx.x & (plan.team - 1), slot = team / plan.pieces;
  const int begin = (team - slot * plan.pieces) * plan.length;
  const int end = begin + plan.length < plan.channels ? begin + plan.length : plan.channels;
  const auto column = [&](int j) { return begin + (j * plan.team + member) * V; };
  // Of the row, from its accumulators. Sums alternate between two places: one barrier each.
  const auto row_sum = [&](const float (&a)[V], int place) {
    float s = team_sum(a, plan.team);
    if (WIDE) {
      if (member == 0) sums[place * kTeams + team] = s;
      __syncthreads();
      if (slot < plan.at_once) {
        s = sums[place * kTeams + slot * plan.pieces];
        for (int p = 1; p < plan.pieces; ++p) s += sums[place * kTeams + slot * plan.pieces + p];
      }
    } else if (plan.pieces == 2) {
      s += __shfl_xor_sync(kFullWarp, s, plan.team);
    }
    return s;
  };
  Offsets offsets(rounding);
  Range range[KEEP == Keep::groups ? RUNS : 1];
  int group[KEEP == Keep::groups ? RUNS : 1];
  if constexpr (KEEP == Keep::groups) {
    MESA_UNROLL
    for (int j = 0; j < RUNS; ++j) group[j] = column(j) < end ? column(j) / (plan.channels / (int)groups) : -1;
  }
  for (int64_t first = (int64_t)blockIdx.x * plan.at_once; first < plan.rows;
       first += (int64_t)gridDim.x * plan.at_once) {
    const int64_t row = first + slot;
    const bool valid = slot < plan.at_once && row < plan.rows;
    // The row stays as it was loaded: converting it again costs less than the registers.
    Run<T, V> in[RUNS];
    MESA_UNROLL
    for (int j = 0; j < RUNS; ++j)
      if (valid && column(j) < end) in[j].load(x + row * row_stride + column(j));
    float a[V] = {}, squares[V] = {};
    MESA_UNROLL
    for (int j = 0; j < RUNS; ++j) {
      if (!valid || column(j) >= end) continue;
      MESA_UNROLL
      for (int k = 0; k < V; ++k) a[k] += in[j].at(k);
    }
    const float m = row_sum(a, 0) / (float)plan.channels;
    MESA_UNROLL
    for (int j = 0; j < RUNS; ++j) {
      if (!valid || column(j) >= end) continue;
      MESA_UNROLL
      for (int k = 0; k < V; ++k) squares[k] += (in[j].at(k) - m) * (in[j].at(k) - m);
    }
    const float r = 1.0f / sqrtf(row_sum(squares, 1) / (float)plan.channels + eps);
    if (valid && member == 0 && begin == 0) {
      rstd[row] = r;
      if (KEEP == Keep::statistics) mean[row] = m;
    }
    if constexpr (KEEP != Keep::statistics) {
      MESA_UNROLL
      for (int j = 0; j < RUNS; ++j) {
        const int c = column(j);
        if (!valid || c >= end) break;
        const int64_t index = row * plan.channels + c;
        float v[V], out[V];
        MESA_UNROLL
        for (int k = 0; k < V; ++k) out[k] = v[k] = (in[j].at(k) - m) * r;
        if (weight) {
          Run<float, V> w;
          w.load(weight + c);
          MESA_UNROLL
          for (int k = 0; k < V; ++k) out[k] = out[k] * w.at(k);
        }
        if (bias) {
          Run<float, V> b;
          b.load(bias + c);
          MESA_UNROLL
          for (int k = 0; k < V; ++k) out[k] = out[k] + b.at(k);
        }
        store_run(y + index, out);
        if constexpr (KEEP == Keep::groups) {
          float u[V];
          CodeRun<V> code;
          range[j].add(v);
          const Step step{steps[2 * group[j]], 0.0f, steps[2 * group[j] + 1]};
          offsets.get(index, u);
          MESA_UNROLL
          for (int k = 0; k < V; ++k) code.set(k, encode_device(v[k], step, u[k], top_code(bits)), bits);
          code.store(codes + index * bits / 8, bits);
        } else {
          put(normalised, slot * plan.channels + c, v);
        }
      }
    }
    if constexpr (KEEP == Keep::blocks) {
      const int64_t left = plan.rows - first;
      __syncthreads();
      encode_blocks(normalised, first * plan.channels, (int)(left < plan.at_once ? left : plan.at_once) * plan.channels,
                    block_size, bits, offsets, codes, static_cast<uint32_t*>(observed));
      __syncthreads();
    }
  }
  if constexpr (KEEP == Keep::groups) {
    float* found = static_cast<float*>(observed);
    MESA_UNROLL
    for (int j = 0; j < RUNS; ++j) table_add_warp(table, found, groups, group[j], range[j]);
    table_flush(table, found, groups);
  }
}

// Source: x^ from statistics that are there already.
template <class T>
struct NormalisedRows {
  static constexpr int kBlocksPerSm = 3;
  static constexpr bool kSameInRows = false;
  T* y;
  const float *mean, *rstd, *weight, *bias;
  int64_t channels;
  struct Column {
    float mean, rstd;
    int64_t channel;
  };
  __device__ __forceinline__ Column column(int64_t index) const {
    const Quotient q = divide(index, channels);
    return {mean[q.quotient], rstd[q.quotient], q.remainder};
  }
  __device__ __forceinline__ float value(const Column& c, float raw) const { return (raw - c.mean) * c.rstd; }
  __device__ __forceinline__ float value_at(int64_t index, float raw) const { return value(column(index), raw); }
  __device__ __forceinline__ float finish(int64_t channel, float v) const {
    if (weight) v = v * weight[channel];
    if (bias) v = v + bias[channel];
    return v;
  }
  template <int V>
  __device__ __forceinline__ void emit(const Column& c, int64_t index, const float (&)[V], const float (&v)[V]) const {
    float out[V];
    MESA_UNROLL
    for (int k = 0; k < V; ++k) out[k] = v[k];
    if (weight) {
      Run<float, V> w;
      w.load(weight + c.channel);
      MESA_UNROLL
      for (int k = 0; k < V; ++k) out[k] = out[k] * w.at(k);
    }
    if (bias) {
      Run<float, V> b;
      b.load(bias + c.channel);
      MESA_UNROLL
      for (int k = 0; k < V; ++k) out[k] = out[k] + b.at(k);
    }
    store_run(y + index, out);
  }
  template <int V>
  __device__ __forceinline__ void emit_some(int64_t index, const float (&raw)[V], int count) const {
    MESA_UNROLL
    for (int k = 0; k < V; ++k) {
      if (k >= count) break;
      const Column c = column(index + k);
      y[index + k] = from_float<T>(finish(c.channel, value(c, raw[k])));
    }
  }
};

// ---- backward ------------------------------------------------------------------------------------------------------
constexpr int kBackwardRun = 4, kBackwardRuns = 8;  // a lane holds at most that many runs
constexpr int kLongestInWarp = 32 * kBackwardRun * kBackwardRuns;

// A row to a team of lanes; longer ones than kLongestInWarp to lanes of several warps.
struct Lanes {
  int64_t rows;
  int channels, team, runs;  // a lane holds `runs` runs of a row
};
// The team (a power of two) that leaves fewest lanes idle; 0 where none is wide enough.
inline Lanes plan_lanes(int64_t rows, int64_t channels) {
  Lanes best{rows, (int)channels, 0, 0};
  const int64_t runs = ceil_div(channels, kBackwardRun), widest = channels > kLongestInWarp ? kRowThreads : 32;
  int64_t least = INT64_MAX;
  for (int64_t team = widest; team >= 1; team /= 2) {
    const int64_t each = ceil_div(runs, team);
    if (each > kBackwardRuns || each * team >= least) continue;
    least = each * team;
    best.team = (int)team;
    best.runs = (int)each;
  }
  return best;
}

// Gradient of x, and each block's sums of grad * x^ and grad over its rows: partial[block][2][C].
template <class T, bool BLOCKS, int RUNS, bool WIDE>
__global__ void __launch_bounds__(kRowThreads, RUNS <= 4 ? 4 : BLOCKS ? 3 : 2)
    layer_norm_backward_kernel(const T* __restrict__ grad, Lanes plan, const uint8_t* __restrict__ codes,
                               const void* __restrict__ ranges, BlockIndex blocks, int bits, int64_t groups,
                               const float* __restrict__ rstd, const float* __restrict__ weight, T* __restrict__ gx,
                               float* __restrict__ partial) {
  constexpr int V = kBackwardRun, kWarps = kRowThreads / 32;
  MESA_SHARED(float, row_sums, WIDE ? 4 * kWarps : 1);
  MESA_DYNAMIC_SHARED(float, shared);  // [slices][2][C], a slice a warp or, if wider, a team
  const int warp = (int)(threadIdx.x / 32), member = threadIdx.x & (plan.team - 1), slot = threadIdx.x / plan.team;
  const int at_once = kRowThreads / plan.team, row_warps = plan.team / 32;
  const float inverse = 1.0f / (float)plan.channels;
  // Over a row, in place. Rows take turns between two places: one barrier each.
  const auto sum_row = [&](float& a, float& b, int turn) {
    a = lanes_sum(a, WIDE ? 32 : plan.team);
    b = lanes_sum(b, WIDE ? 32 : plan.team);
    if (!WIDE) return;
    if (lane_id() == 0) {
      row_sums[2 * (turn * kWarps + warp)] = a;
      row_sums[2 * (turn * kWarps + warp) + 1] = b;
    }
    __syncthreads();
    a = b = 0.0f;
    for (int w = slot * row_warps; w < (slot + 1) * row_warps; ++w) {
      a += row_sums[2 * (turn * kWarps + w)];
      b += row_sums[2 * (turn * kWarps + w) + 1];
    }
  };
  float sum_gx[RUNS][V] = {}, sum_g[RUNS][V] = {}, lo[RUNS], step[RUNS];
  if (!BLOCKS) {  // a lane's columns are the same in every row
    MESA_UNROLL
    for (int j = 0; j < RUNS; ++j) {
      const int c = (j * plan.team + member) * V;
      if (c >= plan.channels) break;
      const float* r = static_cast<const float*>(ranges) + 2 * (c / (plan.channels / (int)groups));
      const Step s = make_step(r[0], r[1], top_code(bits));
      lo[j] = s.lo;
      step[j] = s.step;
    }
  }
  int turn = 0;
  for (int64_t first = (int64_t)blockIdx.x * at_once; first < plan.rows;
       first += (int64_t)gridDim.x * at_once, turn ^= 1) {
    const int64_t row = first + slot;
    const bool valid = row < plan.rows;
    // Gradients and codes stay packed between the two uses: converting twice is cheaper than the registers.
    Pack<T, V> in[RUNS];
    CodeRun<V> code[RUNS];
    MESA_UNROLL
    for (int j = 0; j < RUNS; ++j) {
      const int c = (j * plan.team + member) * V;
      if (!valid || c >= plan.channels) continue;
      const int64_t index = row * plan.channels + c;
      in[j] = load_pack<V>(grad + index);
      code[j].load(codes + index * bits / 8, bits);
    }
    float a = 0.0f, b = 0.0f;
    MESA_UNROLL
    for (int j = 0; j < RUNS; ++j) {
      const int c = (j * plan.team + member) * V;
      if (!valid || c >= plan.channels) continue;
      if (BLOCKS) {
        const uint32_t range = static_cast<const uint32_t*>(ranges)[blocks.of(row * plan.channels + c)];
        const Step s = block_step(range, top_code(bits));
        lo[j] = s.lo;
        step[j] = s.step;
      }
      Run<float, V> w;
      if (weight) w.load(weight + c);
      MESA_UNROLL
      for (int k = 0; k < V; ++k) {
        const float gy = to_float(in[j].v[k]), n = decode(code[j].at(k, bits), Step{lo[j], step[j], 0.0f});
        sum_gx[j][k] += gy * n;
        sum_g[j][k] += gy;
        const float g = weight ? gy * w.at(k) : gy;
        a += g;
        b += g * n;
      }
    }
    sum_row(a, b, turn);
    a *= inverse;
    b *= inverse;
    if (!valid) continue;
    const float r = rstd[row];
    MESA_UNROLL
    for (int j = 0; j < RUNS; ++j) {
      const int c = (j * plan.team + member) * V;
      if (c >= plan.channels) break;
      Run<float, V> w;
      if (weight) w.load(weight + c);
      Pack<T, V> out;
      MESA_UNROLL
      for (int k = 0; k < V; ++k) {
        const float gy = to_float(in[j].v[k]), n = decode(code[j].at(k, bits), Step{lo[j], step[j], 0.0f});
        out.v[k] = from_float<T>(((weight ? gy * w.at(k) : gy) - a - n * b) * r);
      }
      store_pack<V>(gx + row * plan.channels + c, out);
    }
  }
  // Teams of a warp, then slices, always in the same order.
  MESA_UNROLL
  for (int j = 0; j < RUNS; ++j) {
    const int c = (j * plan.team + member) * V;
    MESA_UNROLL
    for (int k = 0; k < V; ++k) {
      float x = sum_gx[j][k], s = sum_g[j][k];
      for (int o = plan.team; o < 32; o <<= 1) {
        x += __shfl_xor_sync(kFullWarp, x, o);
        s += __shfl_xor_sync(kFullWarp, s, o);
      }
      if ((WIDE || lane_id() < plan.team) && c < plan.channels) {
        const int slice = WIDE ? slot : warp;
        shared[(slice * 2) * plan.channels + c + k] = x;
        shared[(slice * 2 + 1) * plan.channels + c + k] = s;
      }
    }
  }
  __syncthreads();
  const int slices = WIDE ? at_once : kWarps;
  for (int i = threadIdx.x; i < 2 * plan.channels; i += kRowThreads) {
    float s = 0.0f;
    for (int w = 0; w < slices; ++w) s += shared[w * 2 * plan.channels + i];
    partial[(int64_t)blockIdx.x * 2 * plan.channels + i] = s;
  }
}

struct AnyRow {  // x^ of one element, however the codes lie
  const uint8_t* codes;
  const void* ranges;
  BlockIndex blocks;
  int64_t channels, groups;
  int bits;
  __device__ __forceinline__ float at(int64_t row, int64_t channel) const {
    const int64_t index = row * channels + channel;
    Step step;
    if (blocks.size) {
      step = block_step(static_cast<const uint32_t*>(ranges)[blocks.of(index)], top_code(bits));
    } else {
      const float* r = static_cast<const float*>(ranges) + 2 * divide(channel, channels / groups).quotient;
      step = make_step(r[0], r[1], top_code(bits));
    }
    return decode(code_at(codes, index, bits), step);
  }
};
// Rows of any length, a block a row, read twice.
template <class T>
__global__ void __launch_bounds__(kCodeThreads, 4)
    layer_norm_backward_any_kernel(const T* __restrict__ grad, int64_t rows, AnyRow normalised,
                                   const float* __restrict__ rstd, const float* __restrict__ weight,
                                   T* __restrict__ gx) {
  constexpr int kWarps = kCodeThreads / 32;
  MESA_SHARED(float, sums, 2 * kWarps);
  const int64_t channels = normalised.channels;
  const int lane = lane_id(), warp = (int)(threadIdx.x / 32);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    float a = 0.0f, b = 0.0f;
    for (int64_t c = threadIdx.x; c < channels; c += kCodeThreads) {
      const float g = to_float(grad[row * channels + c]) * (weight ? weight[c] : 1.0f);
      a += g;
      b += g * normalised.at(row, c);
    }
    a = lanes_sum(a);
    b = lanes_sum(b);
    __syncthreads();  // the last row's sums have been read
    if (lane == 0) {
      sums[2 * warp] = a;
      sums[2 * warp + 1] = b;
    }
    __syncthreads();
    a = b = 0.0f;
    for (int w = 0; w < kWarps; ++w) {
      a += sums[2 * w];
      b += sums[2 * w + 1];
    }
    a /= (float)channels;
    b /= (float)channels;
    const float r = rstd[row];
    for (int64_t c = threadIdx.x; c < channels; c += kCodeThreads) {
      const float g = to_float(grad[row * channels + c]) * (weight ? weight[c] : 1.0f);
      gx[row * channels + c] = from_float<T>((g - a - normalised.at(row, c) * b) * r);
    }
  }
}
// partial[blockIdx.y][2][C]: sums over every gridDim.y-th row.
template <class T>
__global__ void __launch_bounds__(kCodeThreads, 4)
    layer_norm_columns_kernel(const T* __restrict__ grad, int64_t rows, AnyRow normalised, float* __restrict__ partial) {
  const int64_t channels = normalised.channels;
  for (int64_t c = thread_index(); c < channels; c += thread_count()) {
    float x = 0.0f, s = 0.0f;
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
      const float g = to_float(grad[row * channels + c]);
      x += g * normalised.at(row, c);
      s += g;
    }
    partial[(int64_t)blockIdx.y * 2 * channels + c] = x;
    partial[(int64_t)blockIdx.y * 2 * channels + channels + c] = s;
  }
}

}  // namespace mesa
