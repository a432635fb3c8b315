#pragma once
// One block works on one (window, head) at a time: k and v of the window in shared memory, the queries in tiles of
// `rows`, one tile of probabilities (and of their gradient) beside them. All in float32; products are written as fmaf,
// since the build forbids the compiler to contract.
#include "device.cuh"
#include "window_attention.h"
#include "window_places.cuh"

namespace mesa {

// At most; the launcher picks what the window needs. Forward leaves room for a second block of nine warps (144 tokens of
// width 32); backward needs the registers that 512 threads may have.
constexpr int kForwardThreads = 288;
constexpr int kBackwardThreads = 512;
constexpr int kScalarThreads = 384;     // backward where the tensors take no vectors
constexpr int kRowLanes = 8;            // lanes that share a row of logits
constexpr int kMaxTokens = kMaxWindow * kMaxWindow;
constexpr int kMaxRows = 32;
constexpr int kStaticBytes = 4 * (3 * kMaxTokens + kMaxRows);  // of shared memory, beside the tiles

// Sizes of the shared arrays, in floats and rows. Rows of d values are an odd number of 16-byte words apart, so that eight
// threads that read eight rows meet eight banks.
struct AttentionTiles {
  int rows;       // queries of a tile, a multiple of 4
  int threads;
  int d4, n4;     // d and N in fours, rounded up
  int stride;     // of a row of d values
  int columns;    // of a row of logits
  int square;     // floats of a tile of logits
  int64_t shared_bytes(bool backward) const {
    const int64_t kv = 2 * (int64_t)columns * stride, q = (int64_t)rows * stride;
    return 4 * (kv + (backward ? 2 : 1) * (q + square));
  }
};

__device__ __forceinline__ float dot4(float4 a, float4 b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}
__device__ __forceinline__ void add4(float4& sum, float a, float4 b) {
  sum.x = fmaf(a, b.x, sum.x);
  sum.y = fmaf(a, b.y, sum.y);
  sum.z = fmaf(a, b.z, sum.z);
  sum.w = fmaf(a, b.w, sum.w);
}

// Values [4 * c, 4 * c + 4) of a row of `dim` values, zeros beyond it.
template <bool VECTOR, class T>
__device__ __forceinline__ float4 read4(const T* row, int c, int dim) {
  float4 v;
  if (VECTOR) {
    const Pack<T, 4> p = load_pack<4>(row + 4 * c);
    v = make_float4(to_float(p.v[0]), to_float(p.v[1]), to_float(p.v[2]), to_float(p.v[3]));
  } else {
    const int left = dim - 4 * c;
    v.x = to_float(row[4 * c]);
    v.y = left > 1 ? to_float(row[4 * c + 1]) : 0.0f;
    v.z = left > 2 ? to_float(row[4 * c + 2]) : 0.0f;
    v.w = left > 3 ? to_float(row[4 * c + 3]) : 0.0f;
  }
  return v;
}
template <bool VECTOR, class T>
__device__ __forceinline__ void write4(T* row, int c, int dim, float4 v, float scale) {
  Pack<T, 4> p;
  p.v[0] = from_float<T>(v.x * scale);
  p.v[1] = from_float<T>(v.y * scale);
  p.v[2] = from_float<T>(v.z * scale);
  p.v[3] = from_float<T>(v.w * scale);
  if (VECTOR) {
    store_pack<4>(row + 4 * c, p);
  } else {
    for (int e = 0; e < 4 && 4 * c + e < dim; ++e) row[4 * c + e] = p.v[e];
  }
}

// k or v of every position; rows beyond N are zeros.
template <class T, bool VECTOR, class S, class I>
__device__ __forceinline__ void load_keys(const S& to, const AttentionTiles& t, const T* from, int64_t from_row,
                                          const float* pad, I token, int tokens, int dim) {
#pragma unroll 2
  for (int i = (int)threadIdx.x; i < t.columns * t.d4; i += (int)blockDim.x) {
    const int row = i / t.d4, c = i - row * t.d4;
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (row < tokens) {
      const int at = token[row];
      if (at >= 0)
        v = read4<VECTOR>(from + at * from_row, c, dim);
      else if (pad)
        v = read4<false>(pad, c, dim);
    }
    store4(to, row * t.stride + 4 * c, v);
  }
}
// A tile of rows of the positions real[first...], scaled; zeros beyond `count` rows.
template <class T, bool VECTOR, class S, class I>
__device__ __forceinline__ void load_queries(const S& to, const AttentionTiles& t, const T* from, int64_t from_row, I token,
                                             I real, int first, int count, int dim, float scale) {
#pragma unroll 2
  for (int i = (int)threadIdx.x; i < t.rows * t.d4; i += (int)blockDim.x) {
    const int row = i / t.d4, c = i - row * t.d4;
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (row < count) {
      v = read4<VECTOR>(from + token[real[first + row]] * from_row, c, dim);
      v.x *= scale, v.y *= scale, v.z *= scale, v.w *= scale;
    }
    store4(to, row * t.stride + 4 * c, v);
  }
}

// to[row][column] = a[row] . b[column] for a tile: four neighbouring rows and four columns, n4 apart, a thread.
template <class S>
__device__ __forceinline__ void multiply_rows(const S& to, const S& a, const S& b, const AttentionTiles& t) {
  for (int u = (int)threadIdx.x; u < t.rows / 4 * t.n4; u += (int)blockDim.x) {
    const int r = u / t.n4, c = u - r * t.n4;
    float sum[4][4] = {};
#pragma unroll 1
    for (int k = 0; k < t.d4; ++k) {
      float4 left[4];
      MESA_UNROLL
      for (int i = 0; i < 4; ++i) left[i] = load4(a, (4 * r + i) * t.stride + 4 * k);
      MESA_UNROLL
      for (int j = 0; j < 4; ++j) {
        const float4 right = load4(b, (c + j * t.n4) * t.stride + 4 * k);
        MESA_UNROLL
        for (int i = 0; i < 4; ++i) sum[i][j] = dot4(left[i], right, sum[i][j]);
      }
    }
    MESA_UNROLL
    for (int i = 0; i < 4; ++i) {
      MESA_UNROLL
      for (int j = 0; j < 4; ++j) to[(4 * r + i) * t.columns + c + j * t.n4] = sum[i][j];
    }
  }
}

// Rows 2 u and 2 u + 1 of p times b, columns [4 c, 4 c + 4).
template <class S>
__device__ __forceinline__ void weigh_rows(const S& p, const S& b, const AttentionTiles& t, int u, int c, float4 sum[2]) {
  sum[0] = sum[1] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
  for (int j = 0; j < t.n4; ++j) {
    const float4 x = load4(p, 2 * u * t.columns + 4 * j), y = load4(p, (2 * u + 1) * t.columns + 4 * j);
    const float wx[4] = {x.x, x.y, x.z, x.w}, wy[4] = {y.x, y.y, y.z, y.w};
    MESA_UNROLL
    for (int e = 0; e < 4; ++e) {
      const float4 v = load4(b, (4 * j + e) * t.stride + 4 * c);
      add4(sum[0], wx[e], v);
      add4(sum[1], wy[e], v);
    }
  }
}

// Logits of one row become bias + logits + mask; returns their maximum. kRowLanes lanes share the row.
template <class S, class I>
__device__ __forceinline__ float finish_logits(const S& p, int row, const float* bias, I region, int mine, bool masked,
                                               int tokens, int lane, bool active) {
  float top = -INFINITY;
  if (active) {
    for (int j = lane; j < tokens; j += kRowLanes) {
      float x = p[row + j] + bias[j];
      if (masked && region[j] != mine) x += kRegionMask;
      p[row + j] = x;
      top = fmaxf(top, x);
    }
  }
  return lanes_max(top, kRowLanes);
}

template <class T, bool VECTOR>
__global__ void __launch_bounds__(kForwardThreads, 2)
    window_attention_kernel(const T* __restrict__ qkv, const float* __restrict__ pad, const float* __restrict__ bias,
                            T* __restrict__ out, Attention a, AttentionTiles t) {
  MESA_DYNAMIC_SHARED(float, memory);
  MESA_SHARED(int, token, kMaxTokens);
  MESA_SHARED(int, region, kMaxTokens);
  MESA_SHARED(int, real, kMaxTokens);
  MESA_SHARED(float, inverse, kMaxRows);
  const auto k = memory + 0, v = k + t.columns * t.stride, q = v + t.columns * t.stride, p = q + t.rows * t.stride;
  const int n = a.tokens(), d = a.dim, channels = a.heads * d, warps = (int)blockDim.x / 32, warp = (int)threadIdx.x / 32;
  const int per_image = a.map.rows * a.map.columns;
  const int64_t map = (int64_t)a.map.height * a.map.width, width = 3 * (int64_t)channels;
  const int64_t units = a.windows() * a.heads;
  for (int64_t u = blockIdx.x; u < units; u += gridDim.x) {
    const Quotient by_head = divide(u, a.heads), by_window = divide(by_head.quotient, per_image);
    const int head = (int)by_head.remainder;
    const WindowAt w = window_at(a.map, (int)by_window.remainder);
    const T* base = qkv + by_window.quotient * map * width + head * d;
    T* to = out + by_window.quotient * map * channels + head * d;
    const float* head_bias = bias + (int64_t)head * n * n;
    const bool masked = window_has_regions(a.map, w);
    __syncthreads();  // the last unit's tiles are read
    const int queries = find_places(a.map, w, token + 0, region + 0, real + 0);
    __syncthreads();
    load_keys<T, VECTOR>(k, t, base + channels, width, pad ? pad + channels + head * d : nullptr, token + 0, n, d);
    load_keys<T, VECTOR>(v, t, base + 2 * channels, width, pad ? pad + 2 * channels + head * d : nullptr, token + 0, n, d);
    for (int first = 0; first < queries; first += t.rows) {
      const int count = queries - first < t.rows ? queries - first : t.rows;
      load_queries<T, VECTOR>(q, t, base, width, token + 0, real + 0, first, count, d, a.scale);
      __syncthreads();
      multiply_rows(p, q, k, t);
      __syncthreads();
      const int lane = lane_id() % kRowLanes;
      for (int r0 = warp * (32 / kRowLanes); r0 < t.rows; r0 += warps * (32 / kRowLanes)) {
        const int r = r0 + lane_id() / kRowLanes, row = r * t.columns;
        const bool active = r < count;
        const int at = active ? (int)real[first + r] : 0;
        const float top = finish_logits(p, row, head_bias + at * n, region + 0, (int)region[at], masked, n, lane, active);
        float sum = 0.0f;
        for (int j = lane; j < t.columns; j += kRowLanes) {
          const float e = active && j < n ? expf(p[row + j] - top) : 0.0f;
          p[row + j] = e;
          sum += e;
        }
        sum = lanes_sum(sum, kRowLanes);
        if (lane == 0) inverse[r] = active ? 1.0f / sum : 0.0f;
      }
      __syncthreads();
      for (int i = (int)threadIdx.x; i < (count + 1) / 2 * t.d4; i += (int)blockDim.x) {
        const int r = i / t.d4, c = i - r * t.d4;
        float4 sum[2];
        weigh_rows(p, v, t, r, c, sum);
        MESA_UNROLL
        for (int e = 0; e < 2; ++e) {
          const int row = 2 * r + e;
          if (row < count)
            write4<VECTOR>(to + (int64_t)token[real[first + row]] * channels, c, d, sum[e], inverse[row]);
        }
      }
    }
  }
}

// Workspace of a (run, head): gbias [N, N], then the k and v gradients of padded tokens [2, d].
template <class T, bool VECTOR>
__global__ void __launch_bounds__(VECTOR ? kBackwardThreads : kScalarThreads, 1)
    window_attention_backward_kernel(const T* __restrict__ grad, const T* __restrict__ qkv, const float* __restrict__ pad,
                                     const float* __restrict__ bias, T* __restrict__ gqkv, float* workspace, int64_t runs,
                                     Attention a, AttentionTiles t) {
  MESA_DYNAMIC_SHARED(float, memory);
  MESA_SHARED(int, token, kMaxTokens);
  MESA_SHARED(int, region, kMaxTokens);
  MESA_SHARED(int, real, kMaxTokens);
  const auto k = memory + 0, v = k + t.columns * t.stride, q = v + t.columns * t.stride, g = q + t.rows * t.stride,
             p = g + t.rows * t.stride, gp = p + t.square;
  const int n = a.tokens(), d = a.dim, channels = a.heads * d, warps = (int)blockDim.x / 32, warp = (int)threadIdx.x / 32;
  const int thread = (int)threadIdx.x, threads = (int)blockDim.x, tasks = t.n4 * t.d4;
  const int per_image = a.map.rows * a.map.columns;
  const int64_t map = (int64_t)a.map.height * a.map.width, width = 3 * (int64_t)channels;
  const int64_t windows = a.windows(), slice = (int64_t)n * n + 2 * d;
  for (int64_t b = blockIdx.x; b < runs * a.heads; b += gridDim.x) {
    const Quotient by_head = divide(b, a.heads);
    const int head = (int)by_head.remainder;
    const int64_t stop = windows * (by_head.quotient + 1) / runs;
    const float* head_bias = bias + (int64_t)head * n * n;
    float* gbias = workspace + b * slice;
    float* gpad = gbias + n * n;
    for (int i = thread; i < slice; i += threads) gbias[i] = 0.0f;
    for (int64_t window = windows * by_head.quotient / runs; window < stop; ++window) {
      const Quotient by_window = divide(window, per_image);
      const WindowAt w = window_at(a.map, (int)by_window.remainder);
      const T* base = qkv + by_window.quotient * map * width + head * d;
      const T* gbase = grad + by_window.quotient * map * channels + head * d;
      T* to = gqkv + by_window.quotient * map * width + head * d;
      const bool masked = window_has_regions(a.map, w);
      __syncthreads();
      const int queries = find_places(a.map, w, token + 0, region + 0, real + 0);
      __syncthreads();
      load_keys<T, VECTOR>(k, t, base + channels, width, pad ? pad + channels + head * d : nullptr, token + 0, n, d);
      load_keys<T, VECTOR>(v, t, base + 2 * channels, width, pad ? pad + 2 * channels + head * d : nullptr, token + 0, n, d);
      // A thread holds the k and v gradients of four positions and four channels. Where the block has fewer threads than
      // that needs, the tiles are gone through again.
      for (int pass = 0; pass < tasks; pass += threads) {
        const int task = pass + thread, j4 = task / t.d4, c4 = task - j4 * t.d4;
        float4 gk[4], gv[4];
        MESA_UNROLL
        for (int e = 0; e < 4; ++e) gk[e] = gv[e] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (int first = 0; first < queries; first += t.rows) {
          const int count = queries - first < t.rows ? queries - first : t.rows;
          if (pass || first) __syncthreads();
          load_queries<T, VECTOR>(q, t, base, width, token + 0, real + 0, first, count, d, a.scale);
          load_queries<T, VECTOR>(g, t, gbase, (int64_t)channels, token + 0, real + 0, first, count, d, 1.0f);
          __syncthreads();
          multiply_rows(p, q, k, t);
          multiply_rows(gp, g, v, t);
          __syncthreads();
          const int lane = lane_id() % kRowLanes;
          for (int r0 = warp * (32 / kRowLanes); r0 < t.rows; r0 += warps * (32 / kRowLanes)) {
            const int r = r0 + lane_id() / kRowLanes, row = r * t.columns;
            const bool active = r < count;
            const int at = active ? (int)real[first + r] : 0;
            const float top = finish_logits(p, row, head_bias + at * n, region + 0, (int)region[at], masked, n, lane, active);
            float sum = 0.0f, dot = 0.0f;
            if (active) {
              for (int j = lane; j < n; j += kRowLanes) {
                const float e = expf(p[row + j] - top);
                p[row + j] = e;
                sum += e;
                dot = fmaf(e, gp[row + j], dot);
              }
            }
            sum = lanes_sum(sum, kRowLanes);
            dot = lanes_sum(dot, kRowLanes);
            const float inverse = active ? 1.0f / sum : 0.0f, mean = dot * inverse;
            for (int j = lane; j < t.columns; j += kRowLanes) {
              float prob = 0.0f, glogit = 0.0f;
              if (active && j < n) {
                prob = p[row + j] * inverse;
                glogit = prob * (gp[row + j] - mean);
                if (pass == 0) gbias[at * n + j] += glogit;
              }
              p[row + j] = prob;
              gp[row + j] = glogit;
            }
          }
          __syncthreads();
          if (pass == 0) {
            for (int i = thread; i < (count + 1) / 2 * t.d4; i += threads) {
              const int r = i / t.d4, c = i - r * t.d4;
              float4 sum[2];
              weigh_rows(gp, k, t, r, c, sum);
              MESA_UNROLL
              for (int e = 0; e < 2; ++e) {
                const int row = 2 * r + e;
                if (row < count) write4<VECTOR>(to + token[real[first + row]] * width, c, d, sum[e], a.scale);
              }
            }
          }
          if (task < tasks) {
#pragma unroll 1
            for (int i = 0; i < count; ++i) {
              const float4 x = load4(p, i * t.columns + 4 * j4), y = load4(gp, i * t.columns + 4 * j4);
              const float4 gi = load4(g, i * t.stride + 4 * c4), qi = load4(q, i * t.stride + 4 * c4);
              const float wx[4] = {x.x, x.y, x.z, x.w}, wy[4] = {y.x, y.y, y.z, y.w};
              MESA_UNROLL
              for (int e = 0; e < 4; ++e) {
                add4(gv[e], wx[e], gi);
                add4(gk[e], wy[e], qi);
              }
            }
          }
        }
        const bool padded = queries < n;
        float4 pad_k = make_float4(0.0f, 0.0f, 0.0f, 0.0f), pad_v = pad_k;
        if (task < tasks) {
          MESA_UNROLL
          for (int e = 0; e < 4; ++e) {
            const int position = 4 * j4 + e;
            const int at = position < n ? (int)token[position] : -2;
            if (at >= 0) {
              write4<VECTOR>(to + at * width + channels, c4, d, gk[e], 1.0f);
              write4<VECTOR>(to + at * width + 2 * channels, c4, d, gv[e], 1.0f);
            } else if (at == -1) {
              add4(pad_k, 1.0f, gk[e]);
              add4(pad_v, 1.0f, gv[e]);
            }
          }
        }
        if (padded) {  // the same for the whole block
          __syncthreads();
          store4(p, 4 * thread, pad_k);
          store4(gp, 4 * thread, pad_v);
          __syncthreads();
          for (int c = thread; c < d; c += threads) {
            float sum_k = 0.0f, sum_v = 0.0f;
            for (int j = 0; j < t.n4; ++j) {
              const int from = j * t.d4 + c / 4 - pass;
              if (from >= 0 && from < threads) {
                sum_k += p[4 * from + c % 4];
                sum_v += gp[4 * from + c % 4];
              }
            }
            gpad[c] += sum_k;
            gpad[d + c] += sum_v;
          }
        }
      }
    }
  }
}

constexpr int kSumSlices = 8;

// Sums the runs in order: 32 elements of the outputs a block, eight slices of the runs at once.
__global__ void __launch_bounds__(32 * kSumSlices)
    window_attention_sum_kernel(const float* __restrict__ workspace, float* __restrict__ gbias, float* __restrict__ gpad,
                                int64_t runs, int heads, int tokens, int dim) {
  MESA_SHARED(float, part, 32 * kSumSlices);
  const int64_t square = (int64_t)tokens * tokens, slice = square + 2 * dim, count = heads * slice;
  const int lane = (int)threadIdx.x % 32, group = (int)threadIdx.x / 32;
  for (int64_t first = (int64_t)blockIdx.x * 32; first < count; first += (int64_t)gridDim.x * 32) {
    const int64_t i = first + lane;
    float sum = 0.0f;
    if (i < count) {
      for (int64_t run = runs * group / kSumSlices; run < runs * (group + 1) / kSumSlices; ++run)
        sum += workspace[run * count + i];
    }
    __syncthreads();
    part[group * 32 + lane] = sum;
    __syncthreads();
    if (group == 0 && i < count) {
      for (int s = 1; s < kSumSlices; ++s) sum += part[s * 32 + lane];
      const Quotient by_head = divide(i, slice);
      const int head = (int)by_head.quotient;
      const int at = (int)by_head.remainder;
      if (at < square) {
        gbias[head * square + at] = sum;
      } else {
        const int c = at - (int)square;
        gpad[(1 + c / dim) * heads * dim + head * dim + c % dim] = sum;
        if (c < dim) gpad[head * dim + c] = 0.0f;
      }
    }
  }
}

}  // namespace mesa
