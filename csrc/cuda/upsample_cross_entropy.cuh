#pragma once
// Cross-entropy of upsampled logits. First a thread a pixel, all classes: loss, counts, and the log of its sum of
// exponentials. Then the gradient, gathered for each low-resolution pixel in a fixed order, without atomics. Both
// interpolate along the rows once for all pixels that share the result, into shared memory, and along the columns from there.
#include "device.cuh"
#include "upsample_cross_entropy.h"

namespace mesa {

constexpr int kPixelThreads = 256;  // at most: neighbouring pixels of one output row
constexpr int kStage = 6144;        // floats of shared memory for them
constexpr int kClassRun = 4;        // classes whose values a thread holds at once

constexpr int kGradWarps = 4;
constexpr int kGradClasses = 4;  // of a warp: they share labels, factors and taps
constexpr int kGradRows = 8;     // low-resolution rows of a block; it computes the pixels of one row more
constexpr int kGradPixels = 5;   // output columns of a lane: enough for 32 low-resolution columns at scale 4
constexpr int kGradChunk = 32 * kGradPixels;
constexpr int kGradLow = 34;     // low-resolution columns that those need

__device__ __forceinline__ int64_t read_label(const void* labels, LabelType type, int64_t i) {
  switch (type) {
    case LabelType::i64: return static_cast<const int64_t*>(labels)[i];
    case LabelType::i32: return static_cast<const int32_t*>(labels)[i];
    case LabelType::i16: return static_cast<const int16_t*>(labels)[i];
    default: return static_cast<const uint8_t*>(labels)[i];
  }
}

// The four sources of a pixel within one class's map, and their weights.
struct Sources {
  int64_t top, bottom;
  int left, right;
  Tap row, column;
};
__device__ __forceinline__ Sources sources_of(const Axis& rows, const Axis& columns, int64_t y, int64_t x) {
  Sources s;
  s.row = source_tap(rows, y);
  s.column = source_tap(columns, x);
  s.left = s.column.first;
  s.right = s.left + 1 < columns.in ? s.left + 1 : s.left;
  s.top = s.row.first * columns.in;
  s.bottom = s.row.first + 1 < rows.in ? s.top + columns.in : s.top;
  return s;
}
// Between the two rows, at a column of the map.
template <class T>
__device__ __forceinline__ float between_rows(const T* map, const Sources& s, int column) {
  return fmaf(to_float(map[s.bottom + column]), s.row.upper, to_float(map[s.top + column]) * s.row.lower);
}
__device__ __forceinline__ float between_columns(float left, float right, float lower, float upper) {
  return fmaf(right, upper, left * lower);
}

// The block's sums, in a fixed order; thread 0 has them. The fifth is a smallest value.
__device__ __forceinline__ void reduce_block(double (&v)[5]) {
  MESA_SHARED(double, shared, 5 * (kPixelThreads / 32));
  const int warp = threadIdx.x >> 5, warps = (int)(blockDim.x >> 5);
  for (int k = 0; k < 5; ++k)
    for (int o = 16; o > 0; o >>= 1) {
      const double other = __shfl_xor_sync(kFullWarp, v[k], o);
      v[k] = k < 4 ? v[k] + other : (other < v[k] ? other : v[k]);
    }
  __syncthreads();  // the last image's have been read
  if (lane_id() == 0)
    for (int k = 0; k < 5; ++k) shared[k * (kPixelThreads / 32) + warp] = v[k];
  __syncthreads();
  if (threadIdx.x == 0)
    for (int k = 0; k < 5; ++k)
      for (int w = 1; w < warps; ++w) {
        const double other = shared[k * (kPixelThreads / 32) + w];
        v[k] = k < 4 ? v[k] + other : (other < v[k] ? other : v[k]);
      }
}

constexpr double kNoPlace = 1.0e300;

// What a pixel knows of the classes it has seen.
struct Softmax {
  float peak = -INFINITY, total = 0.0f, own = 0.0f;  // largest value, sum of exponentials below it, the label's value
  int best = 0;
  template <class Value>
  __device__ __forceinline__ void add(int begin, int end, int label, Value value) {
    for (int c = begin; c < end; c += kClassRun) {
      float v[kClassRun], top = peak;
      MESA_UNROLL
      for (int k = 0; k < kClassRun; ++k) v[k] = c + k < end ? value(c + k) : -INFINITY;
      MESA_UNROLL
      for (int k = 0; k < kClassRun; ++k) {
        if (v[k] > top) top = v[k], best = c + k;
        if (c + k == label) own = v[k];
      }
      if (top > peak) {
        total *= expf(peak - top);
        peak = top;
      }
      const float shift = peak > -INFINITY ? peak : 0.0f;  // nothing but -inf so far: its exponentials are 0
      MESA_UNROLL
      for (int k = 0; k < kClassRun; ++k) total += expf(v[k] - shift);
    }
  }
};

// A block: one segment of an output row at a time. STAGED: `stage.chunk` classes at a time have the segment's sources in
// shared memory; else they do not fit, and every pixel reads its own.
template <class T, bool STAGED>
__global__ void __launch_bounds__(kPixelThreads, STAGED ? 4 : 2)
    cross_entropy_pixels_kernel(CrossEntropy p, PixelStage stage, int64_t blocks) {
  MESA_DYNAMIC_SHARED(float, sources);  // [chunk][columns]
  const int64_t plane = p.rows.in * p.columns.in;
  const int64_t segments = (p.columns.out + blockDim.x - 1) / blockDim.x, units = p.rows.out * segments;
  const int lane = lane_id(), warp = threadIdx.x >> 5, warps = (int)(blockDim.x >> 5);
  for (int64_t image = blockIdx.y; image < p.batch; image += gridDim.y) {
    const T* maps = static_cast<const T*>(p.logits) + image * p.classes * plane;
    double sums[5] = {0, 0, 0, 0, kNoPlace};
    for (int64_t unit = blockIdx.x; unit < units; unit += blocks) {
      const Quotient place = divide(unit, segments);
      const int first = (int)(place.remainder * blockDim.x), x = first + (int)threadIdx.x, width = (int)p.columns.out;
      const bool inside = x < width;
      const int64_t i = place.quotient * width + x, at = image * p.rows.out * p.columns.out + i;
      const int64_t label = inside ? read_label(p.labels, p.label_type, at) : p.ignore_index;
      const bool known = label >= 0 && label < p.classes, kept = known && label != p.ignore_index && inside;
      if (!known && label != p.ignore_index && (double)i < sums[4]) sums[4] = (double)i;
      const Sources s = sources_of(p.rows, p.columns, place.quotient, inside ? x : width - 1);
      Softmax softmax;
      if constexpr (STAGED) {
        const int last = first + (int)blockDim.x < width ? first + (int)blockDim.x - 1 : width - 1;
        const int left = source_tap(p.columns, first).first, end = source_tap(p.columns, last).first + 1;
        const int count = (end < p.columns.in ? end : end - 1) - left + 1;
        const int mine = s.left - left, second = s.right - left;
        for (int from = 0; from < p.classes; from += stage.chunk) {
          const int to = from + stage.chunk < p.classes ? from + stage.chunk : p.classes;
          __syncthreads();  // the last chunk has been read
          for (int c = from + warp; c < to; c += warps)
            for (int column = lane; column < count; column += 32)
              sources[(c - from) * stage.columns + column] = between_rows(maps + c * plane, s, left + column);
          __syncthreads();
          if (kept)
            softmax.add(from, to, (int)label, [&](int c) {
              const int row = (c - from) * stage.columns;
              return between_columns(sources[row + mine], sources[row + second], s.column.lower, s.column.upper);
            });
        }
      } else if (kept) {
        softmax.add(0, p.classes, (int)label, [&](int c) {
          const T* map = maps + c * plane;
          return between_columns(between_rows(map, s, s.left), between_rows(map, s, s.right), s.column.lower, s.column.upper);
        });
      }
      float loss = 0.0f, log_sum = 0.0f, factor = 0.0f;
      if (kept) {
        const float each = p.class_weight ? p.class_weight[label] : 1.0f;
        factor = p.weight ? each * p.weight[at] : each;
        const float rest = logf(softmax.total);
        loss = factor * (rest + (softmax.peak - softmax.own));
        log_sum = rest + softmax.peak;
        sums[0] += loss;
        sums[1] += 1;
        sums[2] += softmax.best == (int)label && softmax.own == softmax.peak;
        sums[3] += each;
      }
      if (inside && p.loss) p.loss[at] = loss;
      if (inside && p.grad) {
        p.log_sum[at] = log_sum;
        p.factor[at] = factor;
      }
    }
    reduce_block(sums);
    if (threadIdx.x == 0)
      for (int k = 0; k < 5; ++k) p.partial[(image * blocks + blockIdx.x) * 5 + k] = sums[k];
  }
}

__global__ void __launch_bounds__(kPixelThreads) cross_entropy_sums_kernel(CrossEntropy p, int64_t blocks) {
  for (int64_t image = blockIdx.x; image < p.batch; image += gridDim.x) {
    double sums[5] = {0, 0, 0, 0, kNoPlace};
    for (int64_t b = threadIdx.x; b < blocks; b += kPixelThreads) {
      const double* part = p.partial + (image * blocks + b) * 5;
      for (int k = 0; k < 4; ++k) sums[k] += part[k];
      if (part[4] < sums[4]) sums[4] = part[4];
    }
    reduce_block(sums);
    if (threadIdx.x == 0) {
      for (int k = 0; k < 4; ++k) p.sums[image * 5 + k] = sums[k];
      p.sums[image * 5 + 4] = sums[4] < kNoPlace ? sums[4] : -1.0;
    }
  }
}

// First output position whose first source is at least `source`.
__device__ __forceinline__ int first_of(const Axis& axis, int source) {
  int low = 0, high = (int)axis.out;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (source_tap(axis, middle).first < source)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// A warp: kGradClasses classes, 32 low-resolution columns (one a lane), kGradRows low-resolution rows. Over the output rows
// that touch them, in order: each lane adds the gradients of its output columns for the low-resolution row above and the one
// below them; when a low-resolution row is complete, its columns are gathered from that.
template <class T>
__global__ void __launch_bounds__(kGradWarps * 32, 3) cross_entropy_gradient_kernel(CrossEntropy p, GradientTiles tiles) {
  constexpr int C = kGradClasses, K = kGradPixels;
  MESA_SHARED(float, all_low, kGradWarps * C * kGradLow);
  MESA_SHARED(float, all_pixels, kGradWarps * C * kGradChunk);
  const int warp = threadIdx.x >> 5, lane = lane_id();
  const int height = (int)p.rows.in, width = (int)p.columns.in;
  const int64_t plane = (int64_t)height * width;
  // Neighbouring blocks share a tile's labels and factors.
  for (int unit = (int)blockIdx.x; unit < tiles.count; unit += (int)gridDim.x) {
    const int by_class = unit / tiles.classes, by_column = by_class / tiles.columns, by_row = by_column / tiles.rows;
    const int first_class = ((unit - by_class * tiles.classes) * kGradWarps + warp) * C;
    if (first_class >= p.classes) continue;  // whole warps, and only warps wait for each other below
    const int left = (by_class - by_column * tiles.columns) * 32, x = left + lane;
    const int top = (by_column - by_row * tiles.rows) * kGradRows, bottom = top + kGradRows < height ? top + kGradRows : height;
    const int64_t image = by_row;
    const T* maps = static_cast<const T*>(p.logits) + (image * p.classes + first_class) * plane;
    float* grads = p.grad + (image * p.classes + first_class) * plane;
    const int classes = p.classes - first_class < C ? p.classes - first_class : C;
    const int low = warp * C * kGradLow, pixels = warp * C * kGradChunk;

    // Output columns from `start` to `stop` have a source in this tile; lane x gathers `size` from `mine`
    // on, of which the first `lead` have it as their second source.
    const int start = first_of(p.columns, left - 1), stop = first_of(p.columns, left + 32);
    const int first_row = first_of(p.rows, top - 1), last_row = first_of(p.rows, bottom);
    const int mine = x < width ? first_of(p.columns, x - 1) : 0, lead = x < width ? first_of(p.columns, x) - mine : 0,
              size = x < width ? first_of(p.columns, x + 1) - mine : 0;

    int chunk = start;
    do {  // once, or more often at large scales
      const int end = chunk + kGradChunk < stop ? chunk + kGradChunk : stop;
      int source[K];
      float upper[K], here[C][K] = {}, below[C][K] = {};
      MESA_UNROLL
      for (int k = 0; k < K; ++k) {
        const int i = chunk + lane + 32 * k;
        const Tap tap = source_tap(p.columns, i);
        source[k] = i < end ? low + tap.first - left + 1 : low;
        upper[k] = tap.upper;
      }
      // Row `row` of the gradient from `here`, whose place `below` takes.
      const auto flush = [&](int row) {
        MESA_UNROLL
        for (int c = 0; c < C; ++c) {
          MESA_UNROLL
          for (int k = 0; k < K; ++k) {
            all_pixels[pixels + c * kGradChunk + 32 * k + lane] = here[c][k];
            here[c][k] = below[c][k];
            below[c][k] = 0.0f;
          }
        }
        __syncwarp();
        float sum[C] = {};
        for (int i = mine > chunk ? mine : chunk; i < mine + size && i < end; ++i) {
          const Tap tap = source_tap(p.columns, i);
          const float weight = i < mine + lead ? tap.upper : x + 1 < width ? tap.lower : tap.lower + tap.upper;
          MESA_UNROLL
          for (int c = 0; c < C; ++c) sum[c] = fmaf(all_pixels[pixels + c * kGradChunk + i - chunk], weight, sum[c]);
        }
        MESA_UNROLL
        for (int c = 0; c < C; ++c) {
          float* grad = grads + c * plane + (int64_t)row * width + x;
          if (x < width && c < classes) *grad = chunk == start ? sum[c] : *grad + sum[c];
        }
        __syncwarp();
      };

      int row = top;
      for (int y = first_row; y < last_row; ++y) {
        const Tap tap = source_tap(p.rows, y);
        for (; row < tap.first; ++row) flush(row);
        const int second = tap.first + 1 < height ? tap.first + 1 : tap.first;
        // Of a pixel's gradient, the shares of `row` and of the row below it.
        const float to_here = tap.first < top ? tap.upper : second > tap.first ? tap.lower : tap.lower + tap.upper;
        const float to_below = tap.first < top || second == tap.first ? 0.0f : tap.upper;
        MESA_UNROLL
        for (int c = 0; c < C; ++c) {
          const T* map = maps + (c < classes ? c : 0) * plane;
          for (int i = lane; i < kGradLow; i += 32) {
            int from = left - 1 + i;
            from = from < 0 ? 0 : from < width ? from : width - 1;
            all_low[low + c * kGradLow + i] = fmaf(to_float(map[(int64_t)second * width + from]), tap.upper,
                                                   to_float(map[(int64_t)tap.first * width + from]) * tap.lower);
          }
        }
        __syncwarp();
        const int64_t base = (image * p.rows.out + y) * p.columns.out + chunk + lane;
        MESA_UNROLL
        for (int k = 0; k < K; ++k) {
          const int64_t at = base + 32 * k;
          const float factor = chunk + lane + 32 * k < end ? p.factor[at] : 0.0f;
          if (factor == 0.0f) continue;
          const float log_sum = p.log_sum[at], lower = 1.0f - upper[k];
          const int label = (int)read_label(p.labels, p.label_type, at) - first_class;  // a class, where the factor is not 0
          MESA_UNROLL
          for (int c = 0; c < C; ++c) {
            const int from = source[k] + c * kGradLow;
            float g = expf(between_columns(all_low[from], all_low[from + 1], lower, upper[k]) - log_sum);
            if (label == c) g -= 1.0f;
            g *= factor;
            here[c][k] = fmaf(g, to_here, here[c][k]);
            if (to_below != 0.0f) below[c][k] = fmaf(g, to_below, below[c][k]);
          }
        }
        __syncwarp();  // `low` has been read
      }
      for (; row < bottom; ++row) flush(row);
      chunk += kGradChunk;
    } while (chunk < stop);
  }
}

}  // namespace mesa
