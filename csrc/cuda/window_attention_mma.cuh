#pragma once
// Window attention of 16-bit tensors on tensor cores. A block takes a run of windows of one head, one at a time; a warp
// has 16 positions, whose logits stay in its registers. The next window's q, k, v (and grad) are copied into shared
// memory meanwhile, where that has room for them.
//
// Factors of products are 16-bit; their sums, the logits, the softmax and the bias gradient are float32. So what is
// rounded on the way is the k and v of padded tokens, the probabilities and, backward, the gradient of the logits.
// bfloat16 takes those as they come; float16 would lose the small ones. There the probabilities carry a factor of 2^14
// backward, and the gradient of a window's logits a power of two from a bound of its largest.
#include "mma.cuh"
#include "window_attention.h"
#include "window_places.cuh"

#if defined(MESA_EMU) || !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define MESA_TENSOR_CORES 1  // else the kernels are empty, and not launched
#else
#define MESA_TENSOR_CORES 0
#endif

namespace mesa {

// Forward blocks of a multiprocessor for windows of several chunks, which the registers are shared among; for sm_100 and
// sm_120 ptxas spills where it must fit two.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kLargeBlocks = 1;
#else
constexpr int kLargeBlocks = 2;
#endif
constexpr float kLog2e = 1.44269504088896341f;

// For windows of up to 8 * TILES * CHUNKS tokens, whose keys are taken 8 * TILES at a time, and heads of up to WIDTH
// channels. Rows in shared memory are an odd number of 16-byte words apart: eight of them, as load_matrices reads them,
// meet all banks.
template <int TILES, int CHUNKS, int WIDTH>
struct MmaTiles {
  static constexpr int kTiles = TILES, kChunks = CHUNKS, kWidth = WIDTH;
  static constexpr int kKeyTiles = TILES * CHUNKS;
  static constexpr int kWarps = (kKeyTiles + 1) / 2, kThreads = 32 * kWarps, kRows = 16 * kWarps;
  static constexpr int kStride = 8 * (WIDTH / 8 | 1);        // of a row of q, k, v or grad
  static constexpr int kSquareStride = 8 * (kKeyTiles | 1);  // of a row of probabilities
  static constexpr int kMatrix = kRows * kStride, kSquare = kRows * kSquareStride;
  static constexpr int kSlots = 3;  // windows whose places are known at once
  static_assert(WIDTH % 32 == 0 && (CHUNKS == 1 || TILES % 2 == 0), "");
  // Blocks of a multiprocessor that the registers are shared among.
  static constexpr int kForwardBlocks = CHUNKS > 1 ? (WIDTH > 32 ? 1 : kLargeBlocks) : WIDTH > 32 ? 3 : 5;
  static constexpr int kBackwardBlocks = CHUNKS > 1 ? 1 : WIDTH > 32 ? 2 : 3;
  // Shared memory of a block that holds `buffers` windows at once.
  static constexpr int64_t dynamic_bytes(bool backward, int buffers) {
    return 2 * ((backward ? 4 : 3) * (int64_t)buffers * kMatrix + (backward ? kSquare : 0));
  }
  static constexpr int64_t static_bytes(bool backward) {
    return 4 * (2 * kSlots * kRows + (backward ? kWarps * (2 * WIDTH + 1) : 0));
  }
};

// ---- matrices --------------------------------------------------------------------------------------------------------
template <int TILES>
__device__ __forceinline__ void clear_tiles(float (&s)[TILES][4]) {
  MESA_UNROLL
  for (int t = 0; t < TILES; ++t) s[t][0] = s[t][1] = s[t][2] = s[t][3] = 0.0f;
}

// 16 rows of a as the left factor of a product.
template <class M>
using Rows = uint32_t[M::kWidth / 16][4];
template <class M, class S>
__device__ __forceinline__ void load_rows(Rows<M>& to, const S& a) {
  const int lane = lane_again();
  const auto at = a + (lane % 16 * M::kStride + lane / 16 * 8);
  MESA_UNROLL
  for (int k = 0; k < M::kWidth / 16; ++k) load_matrices<false>(to[k], at + 16 * k);
}

// The warp's 16 rows.
template <class S>
__device__ __forceinline__ S warp_rows(const S& matrix, int stride) { return matrix + 16 * warp_again() * stride; }

// s += left b^T, for the first 8 * TILES rows of b.
template <class T, class M, int TILES, class S>
__device__ __forceinline__ void multiply_keys(float (&s)[TILES][4], const Rows<M>& left, const S& b) {
  const int lane = lane_again();
  const auto at = b + (lane % 8 * M::kStride + lane / 8 * 8);
  MESA_UNROLL
  for (int t = 0; t < TILES; ++t) {
    MESA_UNROLL
    for (int k = 0; k < M::kWidth / 32; ++k) {
      uint32_t right[4];
      load_matrices<false>(right, at + (8 * t * M::kStride + 32 * k));
      mma<T>(s[t], left[2 * k], right[0], right[1]);
      mma<T>(s[t], left[2 * k + 1], right[2], right[3]);
    }
  }
}

// sum += left b, for 16 rows of b; `at`: what the lane reads of them, right_factor(b).
template <class M, class S>
__device__ __forceinline__ S right_factor(const S& b) {
  const int lane = lane_again();
  return b + (lane % 16 * M::kStride + lane / 16 * 8);
}
template <class T, class M, class S>
__device__ __forceinline__ void add_product(float (&sum)[M::kWidth / 8][4], const uint32_t (&left)[4], const S& at) {
  MESA_UNROLL
  for (int j = 0; j < M::kWidth / 16; ++j) {
    uint32_t right[4];
    load_matrices<true>(right, at + 16 * j);
    mma<T>(sum[2 * j], left, right[0], right[1]);
    mma<T>(sum[2 * j + 1], left, right[2], right[3]);
  }
}

// sum += p b, for p as pack_tiles left it.
template <class T, class M, int TILES, class S>
__device__ __forceinline__ void weigh_keys(float (&sum)[M::kWidth / 8][4], const uint32_t (&p)[TILES][2], const S& b) {
  const S at = right_factor<M>(b);
  MESA_UNROLL
  for (int k = 0; k < (TILES + 1) / 2; ++k) {
    const bool both = 2 * k + 1 < TILES;  // else b's last 8 rows are zeros
    const int next = both ? 2 * k + 1 : 2 * k;
    const uint32_t left[4] = {p[2 * k][0], p[2 * k][1], both ? p[next][0] : 0u, both ? p[next][1] : 0u};
    add_product<T, M>(sum, left, at + 16 * k * M::kStride);
  }
}

// sum = p^T b, for the 16 columns of p [rows, keys] from `first` on.
template <class T, class M, class S>
__device__ __forceinline__ void weigh_queries(float (&sum)[M::kWidth / 8][4], const S& p, int first, const S& b) {
  const int lane = lane_again();
  int column = first + lane / 8 % 2 * 8;
  if (M::kKeyTiles % 2 && column >= 8 * M::kKeyTiles) column = first;  // keys that no window has
  const S from = p + ((lane / 16 * 8 + lane % 8) * M::kSquareStride + column), at = right_factor<M>(b);
  clear_tiles(sum);
#pragma unroll M::kWarps > 4 ? 3 : M::kWarps
  for (int k = 0; k < M::kWarps; ++k) {
    uint32_t left[4];
    load_matrices<true>(left, from + 16 * k * M::kSquareStride);
    add_product<T, M>(sum, left, at + 16 * k * M::kStride);
  }
}

template <class T, int TILES>
__device__ __forceinline__ void pack_tiles(uint32_t (&to)[TILES][2], const float (&s)[TILES][4]) {
  MESA_UNROLL
  for (int t = 0; t < TILES; ++t) {
    to[t][0] = pack2<T>(s[t][0], s[t][1]);
    to[t][1] = pack2<T>(s[t][2], s[t][3]);
  }
}

// Tiles of the warp's 16 rows of the square, which begin at `rows`.
template <class T, class M, int TILES, class S>
__device__ __forceinline__ void store_tiles(const S& rows, const uint32_t (&p)[TILES][2]) {
  const int lane = lane_again();
  const auto at = rows + (lane / 4 * M::kSquareStride + lane % 4 * 2);
  MESA_UNROLL
  for (int t = 0; t < TILES; ++t) {
    store_word<T>(at + 8 * t, p[t][0]);
    store_word<T>(at + (8 * M::kSquareStride + 8 * t), p[t][1]);
  }
}

// The values that this lane stored there.
template <class T, class M, int TILES, class S>
__device__ __forceinline__ void reload_tiles(float (&s)[TILES][4], const S& rows) {
  const int lane = lane_again();
  const auto at = rows + (lane / 4 * M::kSquareStride + lane % 4 * 2);
  MESA_UNROLL
  for (int t = 0; t < TILES; ++t) {
    MESA_UNROLL
    for (int i = 0; i < 2; ++i) {
      const Pack<T, 2> pair = load_shared<2>(at + (8 * i * M::kSquareStride + 8 * t));
      s[t][2 * i] = to_float(pair.v[0]);
      s[t][2 * i + 1] = to_float(pair.v[1]);
    }
  }
}

// Rows of 16 positions to their tokens, times f. They pass through shared memory that only this warp uses, and leave it
// 16 bytes at a time; rows without a token stay as they are there, for they count on zeros beyond the window.
template <class T, class M, class S, class I>
__device__ __forceinline__ void store_rows(const S& scratch, const float (&sum)[M::kWidth / 8][4], float f0, float f1,
                                           T* to, int to_row, const I& token, int dim) {
  const int lane = lane_again();
  const auto at = scratch + (lane / 4 * M::kStride + lane % 4 * 2);
  const bool first = token[lane / 4] >= 0, second = token[lane / 4 + 8] >= 0;
  __syncwarp();
  MESA_UNROLL
  for (int j = 0; j < M::kWidth / 8; ++j) {
    if (8 * j >= dim) continue;
    if (first) store_word<T>(at + 8 * j, pack2<T>(sum[j][0] * f0, sum[j][1] * f0));
    if (second) store_word<T>(at + (8 * M::kStride + 8 * j), pack2<T>(sum[j][2] * f1, sum[j][3] * f1));
  }
  __syncwarp();
  constexpr int kWords = M::kWidth / 8;
  MESA_UNROLL
  for (int i = lane; i < 16 * kWords; i += 32) {
    const int row = i / kWords, c = i % kWords * 8, place = token[row];
    if (place < 0 || c >= dim) continue;
    store_pack<8>(to + (int64_t)place * to_row + c, load_shared<8>(scratch + (row * M::kStride + c)));
  }
}

// The same without shared memory, 4 bytes at a time.
template <class T, class M, class I>
__device__ __forceinline__ void store_fragments(const float (&sum)[M::kWidth / 8][4], float f, T* to, int to_row,
                                                const I& token, int dim) {
  const int lane = lane_again();
  MESA_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int place = token[lane / 4 + 8 * i];
    if (place < 0) continue;
    T* const row = to + ((int64_t)place * to_row + lane % 4 * 2);
    MESA_UNROLL
    for (int j = 0; j < M::kWidth / 8; ++j) {
      if (8 * j >= dim) continue;
      const Pack<T, 2> pair{{from_float<T>(sum[j][2 * i] * f), from_float<T>(sum[j][2 * i + 1] * f)}};
      store_pack<2>(row + 8 * j, pair);
    }
  }
}

// ---- softmax ---------------------------------------------------------------------------------------------------------
// A lane holds parts of rows lane / 4 and lane / 4 + 8, four lanes a row. Logits are divided by `scale` until the
// exponential, whose argument is then one fused operation away: they begin as the bias, and the product is added to it.
template <int TILES>
__device__ __forceinline__ void load_bias(float (&s)[TILES][4], const float4* bias) {
  bias += lane_again();
  MESA_UNROLL
  for (int t = 0; t < TILES; ++t) {
    const float4 b = bias[32 * t];
    s[t][0] = b.x, s[t][1] = b.y, s[t][2] = b.z, s[t][3] = b.w;
  }
}

template <class M>
__device__ __forceinline__ const float4* bias_of(const float4* bias, int head, int tile) {
  return bias + ((int64_t)(head * M::kWarps + warp_again()) * M::kKeyTiles + tile) * 32;
}

// The regions of the warp's rows and of these tiles' keys.
template <int TILES, class I>
__device__ __forceinline__ void mask_regions(float (&s)[TILES][4], float mask, const I& rows, const I& keys) {
  const int lane = lane_again();
  const int mine[2] = {rows[lane / 4], rows[lane / 4 + 8]};
  const I theirs = keys + lane % 4 * 2;
  MESA_UNROLL
  for (int t = 0; t < TILES; ++t) {
    MESA_UNROLL
    for (int e = 0; e < 4; ++e) {
      if (theirs[8 * t + e % 2] != mine[e / 2]) s[t][e] += mask;
    }
  }
}

// scale2: scale times log2(e).
__device__ __forceinline__ float exp_of(float s, float top, float scale2) {
  return exp2_of(fmaf(s, scale2, -top * scale2));
}

// One more chunk of logits: s = exp(scale (s - top)) with the rows' new maxima; `sum` is this lane's part of the rows'
// sums, and `factor` what it was multiplied by, as must be what came of earlier chunks.
template <int TILES>
__device__ __forceinline__ void add_chunk(float (&s)[TILES][4], float scale2, float (&top)[2], float (&sum)[2],
                                          float (&factor)[2]) {
  MESA_UNROLL
  for (int e = 0; e < 2; ++e) {
    float x = top[e];
    MESA_UNROLL
    for (int t = 0; t < TILES; ++t) x = fmaxf(x, fmaxf(s[t][2 * e], s[t][2 * e + 1]));
    x = lanes_max(x, 4);
    const float base = x > -INFINITY ? x : 0.0f;  // nothing but -inf so far: its exponentials are 0
    factor[e] = exp2_of((top[e] - base) * scale2);
    top[e] = x;
    sum[e] *= factor[e];
    MESA_UNROLL
    for (int t = 0; t < TILES; ++t) {
      MESA_UNROLL
      for (int i = 2 * e; i < 2 * e + 2; ++i) {
        s[t][i] = exp_of(s[t][i], base, scale2);
        sum[e] += s[t][i];
      }
    }
  }
}

// The bias as load_bias reads it: for each head, 16 queries, 8 keys and lane the four values of its fragment; -infinity
// at keys beyond the window, 0 at queries beyond it.
__global__ void __launch_bounds__(256)
    attention_bias_kernel(const float* __restrict__ bias, float4* __restrict__ to, float scale, int heads, int tokens,
                          int warps, int tiles) {
  const int64_t count = (int64_t)heads * warps * tiles * 32;
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    const int lane = (int)(i % 32);
    const Quotient by_tile = divide(i / 32, tiles), by_warp = divide(by_tile.quotient, warps);
    const int row = (int)by_warp.remainder * 16 + lane / 4, column = (int)by_tile.remainder * 8 + lane % 4 * 2;
    const float* from = bias + by_warp.quotient * tokens * tokens;
    float v[4];
    MESA_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int r = row + e / 2 * 8, c = column + e % 2;
      v[e] = c >= tokens ? -INFINITY : r < tokens ? from[r * tokens + c] / scale : 0.0f;
    }
    to[i] = make_float4(v[0], v[1], v[2], v[3]);
  }
}

// ---- windows ---------------------------------------------------------------------------------------------------------
// What the launcher works out beforehand, so that no thread keeps it in a register.
struct Plan {
  int runs, least, longer;  // of the windows of a head: `least` windows each, one more those before `longer`
  int buffers;              // windows that are in shared memory at once, 1 or 2
  int tokens, channels, per_image;
  float scale2, mask;       // the scale times log2(e), kRegionMask divided by the scale
};

// A run of windows of one head and where they lie in shared memory: places in slots, matrices (q, k, v and, backward,
// grad) in buffers, in turns.
template <class T, class M, bool BACKWARD, class S, class I>
struct Run {
  const T *qkv, *grad;
  const float* pad;  // null: zeros
  const Attention& a;
  const Plan& plan;
  int head, count;
  S memory;
  I token, region;
  int first;

  __device__ __forceinline__ Run(const T* qkv, const T* grad, const float* pad, const Attention& a, const Plan& plan,
                                 int index, int head, S memory, I token, I region)
      : qkv(qkv), grad(grad), pad(pad), a(a), plan(plan), head(head), memory(memory), token(token), region(region) {
    count = plan.least + (index < plan.longer);
    first = plan.least * index + (index < plan.longer ? index : plan.longer);
  }
  __device__ __forceinline__ int slot(int turn) const { return turn % M::kSlots * M::kRows; }
  __device__ __forceinline__ S buffer(int turn) const {
    return memory + (plan.buffers == 1 ? 0 : turn % 2) * (BACKWARD ? 4 : 3) * M::kMatrix;
  }
  // The last position's region is the first's only where all are.
  __device__ __forceinline__ bool masked(int turn) const { return region[slot(turn) + plan.tokens - 1] != 0; }

  // Begins to copy; rows beyond the window and channels beyond the head are left as they are.
  __device__ __forceinline__ void copy(int turn) const {
    const int c = plan.channels;
    const auto place = token + slot(turn);
    const S q = buffer(turn);
    constexpr int kWords = M::kWidth / 8;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < plan.tokens * kWords; i += M::kThreads) {
      const int row = i / kWords, j = i % kWords * 8, to = row * M::kStride + j, from = head * a.dim + j;
      if (j >= a.dim) continue;
      const int t = place[row];
      if (t >= 0) {
        const T* x = qkv + ((int64_t)t * 3 * c + from);
        copy_async(q + to, x);
        copy_async(q + (M::kMatrix + to), x + c);
        copy_async(q + (2 * M::kMatrix + to), x + 2 * c);
        if (BACKWARD) copy_async(q + (3 * M::kMatrix + to), grad + ((int64_t)t * c + from));
        continue;
      }
#pragma unroll 1
      for (int part = 0; part < (BACKWARD ? 4 : 3); ++part) {
        const bool given = pad && (part == 1 || part == 2);  // queries and gradients of padded tokens are zeros
        Pack<T, 8> p;
        MESA_UNROLL
        for (int e = 0; e < 8; ++e) p.v[e] = from_float<T>(given ? pad[part * c + from + e] : 0.0f);
        store_shared<8>(q + (part * M::kMatrix + to), p);
      }
    }
  }

  // A run takes one step a window: to copy it and to work on it, or, with two buffers, on the one before; then one more.
  __device__ __forceinline__ int steps() const { return count + plan.buffers - 1; }
  // Returns the turn to work on, which is in shared memory then; -1 where there is none yet.
  __device__ __forceinline__ int begin(int step) {
    const bool more = step < count;
    if (more && threadIdx.x < M::kRows) {
      const unsigned image = (unsigned)(first + step) / (unsigned)plan.per_image;
      const WindowAt at = window_at(a.map, first + step - image * plan.per_image);
      find_tokens(a.map, at, image * a.map.height * a.map.width, M::kRows, token + slot(step), region + slot(step));
    }
    wait_for_copies();
    __syncthreads();
    if (more) copy(step);
    __syncwarp();
    if (plan.buffers > 1) return step - 1;
    wait_for_copies();
    __syncthreads();
    return step;
  }
};

template <class T, class M, class S>
__device__ __forceinline__ void clear_matrices(const S& memory, int matrices) {
  Pack<T, 8> zeros;
  MESA_UNROLL
  for (int e = 0; e < 8; ++e) zeros.v[e] = from_float<T>(0.0f);
  for (int i = (int)threadIdx.x * 8; i < matrices * M::kMatrix; i += M::kThreads * 8) store_shared<8>(memory + i, zeros);
}

// ---- kernels ---------------------------------------------------------------------------------------------------------
template <class T, class M>
__global__ void __launch_bounds__(M::kThreads, M::kForwardBlocks)
    window_attention_mma_kernel(const T* __restrict__ qkv, const float* __restrict__ pad, const float4* __restrict__ bias,
                                T* __restrict__ out, Attention a, Plan plan) {
#if MESA_TENSOR_CORES
  MESA_DYNAMIC_SHARED(T, memory);
  MESA_SHARED(int, token, M::kSlots * M::kRows);
  MESA_SHARED(int, region, M::kSlots * M::kRows);
  clear_matrices<T, M>(memory, 3 * plan.buffers);
  for (int b = (int)blockIdx.x; b < plan.runs * a.heads; b += (int)gridDim.x) {
    const int part = (unsigned)b / (unsigned)a.heads, head = b - part * a.heads;
    Run<T, M, false, decltype(memory + 0), decltype(token + 0)> run(qkv, nullptr, pad, a, plan, part, head, memory + 0,
                                                                    token + 0, region + 0);
    __syncthreads();  // the last run is done
#pragma unroll 1
    for (int step = 0; step < run.steps(); ++step) {
      const int turn = run.begin(step);
      if (turn < 0) continue;
      const auto q = run.buffer(turn), k = q + M::kMatrix, v = k + M::kMatrix;
      const auto token_of = run.token + run.slot(turn), region_of = run.region + run.slot(turn);
      const bool masked = run.masked(turn);
      float s[M::kTiles][4];
      float o[M::kWidth / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
#pragma unroll 1
      for (int chunk = 0; chunk < M::kChunks; ++chunk) {
        const int first_key = 8 * M::kTiles * chunk;
        float factor[2];
        Rows<M> left;
        load_rows<M>(left, warp_rows(q, M::kStride));
        load_bias(s, bias_of<M>(bias, head, M::kTiles * chunk));
        multiply_keys<T, M>(s, left, k + first_key * M::kStride);
        if (masked) mask_regions(s, plan.mask, warp_rows(region_of, 1), region_of + first_key);
        add_chunk(s, plan.scale2, top, sum, factor);
        if (M::kChunks > 1) {
          MESA_UNROLL
          for (int j = 0; j < M::kWidth / 8; ++j) {
            MESA_UNROLL
            for (int e = 0; e < 4; ++e) o[j][e] *= factor[e / 2];
          }
        }
        uint32_t p[M::kTiles][2];
        pack_tiles<T>(p, s);
        weigh_keys<T, M>(o, p, v + first_key * M::kStride);
      }
      store_rows<T, M>(warp_rows(q, M::kStride), o, __fdividef(1.0f, lanes_sum(sum[0], 4)),
                       __fdividef(1.0f, lanes_sum(sum[1], 4)), out + head * a.dim, plan.channels, warp_rows(token_of, 1),
                       a.dim);
    }
  }
#else
  __trap();
#endif
}

// How float16 keeps the factors of the backward products in its range.
template <class T>
struct Range {
  static constexpr bool kNarrow = false;
  static constexpr float kProbability = 1.0f;
};
template <>
struct Range<__half> {
  static constexpr bool kNarrow = true;
  static constexpr float kProbability = 16384.0f;
};
// The power of two that takes `top` to 0.5...1, so that p (x - y) with p <= kProbability and |x|, |y| <= top stays below
// 2^15; as close to it as float32 can come with its inverse, and 1 for 0.
__device__ __forceinline__ float normalising(float top) {
  int exponent = 253 - (int)(__float_as_uint(top) >> 23);
  exponent = exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
  return top > 0.0f ? __uint_as_float((unsigned)exponent << 23) : 1.0f;
}

// Of a power of two.
__device__ __forceinline__ float inverse_power(float x) { return __uint_as_float((254u << 23) - __float_as_uint(x)); }

// The gradients of 16 rows of k or v: those of padded tokens are added to the warp's pad [WIDTH].
template <class M, class S, class I>
__device__ __forceinline__ void add_padded(const S& pad, const float (&sum)[M::kWidth / 8][4], float f, const I& token) {
  const int lane = lane_again();
  const bool first = token[lane / 4] == -1, second = token[lane / 4 + 8] == -1;
  if (!__any_sync(kFullWarp, first || second)) return;
  MESA_UNROLL
  for (int j = 0; j < M::kWidth / 8; ++j) {
    MESA_UNROLL
    for (int e = 0; e < 2; ++e) {
      float x = (first ? sum[j][e] : 0.0f) + (second ? sum[j][2 + e] : 0.0f);
      for (int o = 4; o < 32; o *= 2) x += __shfl_xor_sync(kFullWarp, x, o);
      if (lane < 4) pad[8 * j + 2 * lane + e] += x * f;
    }
  }
}

// Workspace of a (run, head) as in window_attention_backward_kernel.
template <class T, class M>
__global__ void __launch_bounds__(M::kThreads, M::kBackwardBlocks)
    window_attention_backward_mma_kernel(const T* __restrict__ grad, const T* __restrict__ qkv,
                                         const float* __restrict__ pad, const float4* __restrict__ bias,
                                         T* __restrict__ gqkv, float* __restrict__ workspace, Attention a, Plan plan) {
#if MESA_TENSOR_CORES
  using R = Range<T>;
  // Of several chunks registers hold one, beside the bias gradient: the logits are computed once for the sums and again
  // for the probabilities, and those are read back, rounded, for the gradient of the logits.
  constexpr bool kMany = M::kChunks > 1;
  constexpr int kStep = kMany ? 2 : M::kTiles;  // tiles at once
  MESA_DYNAMIC_SHARED(T, memory);
  MESA_SHARED(int, token, M::kSlots * M::kRows);
  MESA_SHARED(int, region, M::kSlots * M::kRows);
  MESA_SHARED(float, gpad, M::kWarps * 2 * M::kWidth);
  MESA_SHARED(float, tops, M::kWarps);
  const int n = plan.tokens, d = a.dim, channels = plan.channels;
  const auto square = memory + 4 * plan.buffers * M::kMatrix;
  clear_matrices<T, M>(memory, 4 * plan.buffers);
  for (int b = (int)blockIdx.x; b < plan.runs * a.heads; b += (int)gridDim.x) {
    const int part = (unsigned)b / (unsigned)a.heads, head = b - part * a.heads;
    Run<T, M, true, decltype(memory + 0), decltype(token + 0)> run(qkv, grad, pad, a, plan, part, head, memory + 0,
                                                                   token + 0, region + 0);
    float gbias[M::kChunks][M::kTiles][4] = {};
    __syncthreads();  // the last run is done
    for (int i = (int)threadIdx.x; i < M::kWarps * 2 * M::kWidth; i += M::kThreads) gpad[i] = 0.0f;
#pragma unroll 1
    for (int step = 0; step < run.steps(); ++step) {
      const int turn = run.begin(step);
      if (turn < 0) continue;
      const auto q = run.buffer(turn), k = q + M::kMatrix, v = k + M::kMatrix, g = v + M::kMatrix;
      const auto token_of = run.token + run.slot(turn), region_of = run.region + run.slot(turn);
      const bool masked = run.masked(turn);
      const auto logits = [&](auto& to, int tile) {
        Rows<M> left;
        load_rows<M>(left, warp_rows(q, M::kStride));
        load_bias(to, bias_of<M>(bias, head, tile));
        multiply_keys<T, M>(to, left, k + 8 * tile * M::kStride);
        if (masked) mask_regions(to, plan.mask, warp_rows(region_of, 1), region_of + 8 * tile);
      };
      float s[M::kTiles][4], top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
#pragma unroll 1
      for (int chunk = 0; chunk < M::kChunks; ++chunk) {
        float factor[2];
        logits(s, M::kTiles * chunk);
        add_chunk(s, plan.scale2, top, sum, factor);
      }
      const float inverse[2] = {__fdividef(R::kProbability, lanes_sum(sum[0], 4)),
                                __fdividef(R::kProbability, lanes_sum(sum[1], 4))};
      float mean[2] = {}, most = 0.0f;
      float p[kStep][4], gp[kStep][4];  // probabilities and their gradient
      const auto gradients = [&](int tile) {
        Rows<M> left;
        load_rows<M>(left, warp_rows(g, M::kStride));
        clear_tiles(gp);
        multiply_keys<T, M>(gp, left, v + 8 * tile * M::kStride);
      };
#pragma unroll 1
      for (int tile = 0; tile < M::kKeyTiles; tile += kStep) {
        if (kMany) logits(p, tile);
        gradients(tile);
        MESA_UNROLL
        for (int t = 0; t < kStep; ++t) {
          MESA_UNROLL
          for (int e = 0; e < 4; ++e) {
            p[t][e] = (kMany ? exp_of(p[t][e], top[e / 2], plan.scale2) : s[t][e]) * inverse[e / 2];
            mean[e / 2] = fmaf(p[t][e], gp[t][e], mean[e / 2]);
            if (R::kNarrow) most = fmaxf(most, fabsf(gp[t][e]));
          }
        }
        uint32_t words[kStep][2];
        pack_tiles<T>(words, p);
        store_tiles<T, M>(warp_rows(square, M::kSquareStride) + 8 * tile, words);
      }
      mean[0] = lanes_sum(mean[0], 4) * (1.0f / R::kProbability);
      mean[1] = lanes_sum(mean[1], 4) * (1.0f / R::kProbability);
      if (R::kNarrow) {
        most = __int_as_float(__reduce_max_sync(kFullWarp, __float_as_int(most)));
        if (lane_again() == 0) tops[warp_again()] = most;
      }
      __syncthreads();

      float sums[M::kWidth / 8][4];
      weigh_queries<T, M>(sums, square, 16 * warp_again(), g);
      add_padded<M>(gpad + (2 * warp_again() + 1) * M::kWidth, sums, 1.0f / R::kProbability, warp_rows(token_of, 1));
      if (R::kNarrow) {
        MESA_UNROLL
        for (int i = 0; i < M::kWarps; ++i) most = fmaxf(most, tops[i]);
      }
      const float factor = R::kNarrow ? normalising(most) : 1.0f;
      const float unscale = a.scale * (1.0f / R::kProbability) * inverse_power(factor);
      __syncthreads();  // the probabilities and grad are read; the warp's rows of both are its own from here on
      const auto store = [&](const auto& scratch, float f, T* to) {
        store_rows<T, M>(warp_rows(scratch, M::kStride), sums, f, f, to, 3 * channels, warp_rows(token_of, 1), d);
      };
      T* const gv = gqkv + (2 * channels + head * d);
      if (kMany)  // which still needs the warp's rows of both
        store_fragments<T, M>(sums, 1.0f / R::kProbability, gv, 3 * channels, warp_rows(token_of, 1), d);
      else
        store(g, 1.0f / R::kProbability, gv);
      clear_tiles(sums);
#pragma unroll 1
      for (int chunk = 0; chunk < M::kChunks; ++chunk) {
        float gs[M::kTiles][4];  // gradient of the logits
        MESA_UNROLL
        for (int first = 0; first < M::kTiles; first += kStep) {
          const int tile = M::kTiles * chunk + first;
          if (kMany) {
            gradients(tile);
            reload_tiles<T, M>(p, warp_rows(square, M::kSquareStride) + 8 * tile);
          }
          MESA_UNROLL
          for (int t = 0; t < kStep; ++t) {
            MESA_UNROLL
            for (int e = 0; e < 4; ++e) {
              const float x = p[t][e] * (gp[t][e] - mean[e / 2]);
              gs[first + t][e] = x;
              gp[t][e] = R::kNarrow ? x * factor : x;
            }
          }
          uint32_t words[kStep][2];
          pack_tiles<T>(words, gp);
          store_tiles<T, M>(warp_rows(square, M::kSquareStride) + 8 * tile, words);
          weigh_keys<T, M>(sums, words, k + 8 * tile * M::kStride);
        }
        MESA_UNROLL
        for (int c = 0; c < M::kChunks; ++c) {  // registers have no index
          if (c != chunk) continue;
          MESA_UNROLL
          for (int t = 0; t < M::kTiles; ++t) {
            MESA_UNROLL
            for (int e = 0; e < 4; ++e) gbias[c][t][e] += gs[t][e];
          }
        }
      }
      store(g, unscale, gqkv + head * d);
      __syncthreads();
      weigh_queries<T, M>(sums, square, 16 * warp_again(), q);
      add_padded<M>(gpad + 2 * warp_again() * M::kWidth, sums, unscale, warp_rows(token_of, 1));
      store(k, unscale, gqkv + (channels + head * d));
    }
    const int first_row = 16 * warp_again(), lane = lane_again();
    float* to = workspace + (int64_t)b * (n * n + 2 * d);
    MESA_UNROLL
    for (int tile = 0; tile < M::kKeyTiles; ++tile) {
      MESA_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int r = first_row + lane / 4 + e / 2 * 8, c = 8 * tile + lane % 4 * 2 + e % 2;
        if (r < n && c < n) to[r * n + c] = gbias[tile / M::kTiles][tile % M::kTiles][e] * (1.0f / R::kProbability);
      }
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < 2 * d; i += M::kThreads) {
      const int at = i / d * M::kWidth + i % d;
      float x = 0.0f;
      for (int s = 0; s < M::kWarps; ++s) x += gpad[s * 2 * M::kWidth + at];
      to[n * n + i] = x;
    }
  }
#else
  __trap();
#endif
}

}  // namespace mesa
