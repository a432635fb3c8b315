#include "batch_norm.cuh"

#include "batch_norm.h"
#include "quantize.h"
#include "reduce.cuh"

namespace mesa {

namespace {

__global__ void __launch_bounds__(kCodeThreads)
    batch_norm_merge_kernel(const double* __restrict__ scratch, int64_t channels, int splits, float* __restrict__ mean,
                            float* __restrict__ var) {
  for (int64_t c = thread_index(); c < channels; c += thread_count()) {
    double count = 0.0, m = 0.0, deviation = 0.0;
    for (int s = 0; s < splits; ++s) {
      const double* p = scratch + 3 * (c * splits + s);
      if (p[0] == 0.0) continue;
      const double both = count + p[0], delta = p[1] - m;
      m += delta * (p[0] / both);
      deviation += p[2] + delta * delta * (count * p[0] / both);
      count = both;
    }
    mean[c] = count > 0.0 ? (float)m : NAN;
    var[c] = count > 0.0 ? (float)(deviation / count) : NAN;
  }
}

template <class T>
void stats(const T* x, int64_t batch, int64_t channels, int64_t positions, double* scratch, void* stream) {
  const dim3 grid((unsigned)batch_norm_splits(batch, channels, positions), grid_for(channels, 1));
  if (aligned16(x) && positions % kVector<T> == 0) {
    MESA_LAUNCH((batch_norm_stats_kernel<T, true>), grid, dim3(kCodeThreads), 0, stream, x, batch, channels, positions,
                scratch);
  } else {
    MESA_LAUNCH((batch_norm_stats_kernel<T, false>), grid, dim3(kCodeThreads), 0, stream, x, batch, channels, positions,
                scratch);
  }
}

template <class T, int BITS>
void forward(const T* x, int64_t batch, int64_t channels, int64_t positions, const NormalisedChannels<T>& source,
             const float* ranges, int64_t groups, int block_size, Rounding rounding, uint8_t* codes, void* observed,
             void* stream) {
  const int64_t inner = channels / groups * positions;
  const View3 view{batch, groups, inner, channels * positions, inner, 1};
  const bool runs = positions % kNormRun == 0 && aligned16(source.y);
  if (block_size) {
    quantize_in_blocks<T, BITS, kNormRun>(x, view, block_size, rounding, codes, static_cast<uint32_t*>(observed), runs,
                                          source, stream);
  } else {
    quantize_in_groups<T, BITS, kNormRun>(x, view, ranges, rounding, codes, static_cast<float*>(observed), runs, source,
                                          stream);
  }
}

}  // namespace

// Enough blocks for any device, and the same number on every one: the sums must not depend on it.
int64_t batch_norm_splits(int64_t batch, int64_t channels, int64_t positions) {
  int64_t splits = ceil_div(2048, channels < 1 ? 1 : channels);
  const int64_t most = ceil_div(batch * positions, (int64_t)kCodeThreads * kRunElements);
  if (splits > most) splits = most;
  if (splits > grid_limit()) splits = grid_limit();
  return splits < 1 ? 1 : splits;
}

int launch_batch_norm_stats(const void* x, DType dtype, int64_t batch, int64_t channels, int64_t positions,
                            double* scratch, float* mean, float* var, void* stream) {
  MESA_DISPATCH(dtype, stats(static_cast<const scalar_t*>(x), batch, channels, positions, scratch, stream));
  MESA_LAUNCH(batch_norm_merge_kernel, dim3(grid_for(channels, kCodeThreads)), dim3(kCodeThreads), 0, stream, scratch,
              channels, (int)batch_norm_splits(batch, channels, positions), mean, var);
  return (int)cudaGetLastError();
}

int launch_batch_norm_quantize(const void* x, DType dtype, int64_t batch, int64_t channels, int64_t positions,
                               const float* mean, const float* rstd, const float* weight, const float* bias,
                               const float* ranges, int64_t groups, int bits, int block_size, uint64_t seed,
                               bool stochastic, void* y, uint8_t* mask, uint8_t* codes, void* observed, void* stream) {
  const Rounding rounding{seed, stochastic};
  if (!block_size) {
    const int error = launch_clear_ranges(static_cast<float*>(observed), groups, stream);
    if (error) return error;
  }
  if (batch * channels * positions == 0) return 0;
  MESA_DISPATCH(dtype, {
    const NormalisedChannels<scalar_t> source{static_cast<scalar_t*>(y), mask, mean, rstd, weight, bias, channels,
                                              positions};
    MESA_DISPATCH_BITS(bits, forward<scalar_t, kBits>(static_cast<const scalar_t*>(x), batch, channels, positions, source,
                                                      ranges, groups, block_size, rounding, codes, observed, stream));
  })
  return (int)cudaGetLastError();
}

int launch_batch_norm_backward_reduce(const void* grad, const uint8_t* mask, DType dtype, int64_t batch, int64_t channels,
                                      int64_t positions, const uint8_t* codes, Coding coding, int64_t groups,
                                      float* scratch, float* sums, void* stream) {
  const int64_t splits = batch_norm_splits(batch, channels, positions);
  const dim3 grid((unsigned)splits, grid_for(channels, 1)), threads(kCodeThreads);
  const BlockIndex blocks = block_index(coding.block_size);
  MESA_DISPATCH(dtype, {
    const auto* g = static_cast<const scalar_t*>(grad);
    if (aligned16(g) && (uintptr_t)codes % 8 == 0 && positions % kNormRun == 0) {
      MESA_LAUNCH((batch_norm_sums_kernel<scalar_t, true>), grid, threads, 0, stream, g, mask, batch, channels, positions,
                  codes, coding.ranges, blocks, coding.bits, groups, scratch);
    } else {
      MESA_LAUNCH((batch_norm_sums_kernel<scalar_t, false>), grid, threads, 0, stream, g, mask, batch, channels,
                  positions, codes, coding.ranges, blocks, coding.bits, groups, scratch);
    }
  })
  sum_rows(scratch, splits, 2 * channels, sums, stream);
  return (int)cudaGetLastError();
}

int launch_batch_norm_backward(const void* grad, const uint8_t* mask, DType dtype, int64_t batch, int64_t channels,
                               int64_t positions, const uint8_t* codes, Coding coding, int64_t groups, const float* rstd,
                               const float* weight, const float* mean_g, const float* mean_gx, void* gx, void* stream) {
  MESA_DISPATCH(dtype, {
    const ChannelGradient<scalar_t> sink{static_cast<const scalar_t*>(grad), mask, rstd, weight, mean_g, mean_gx,
                                         static_cast<scalar_t*>(gx), channels, positions};
    const bool runs = aligned16(grad) && aligned16(gx) && positions % kNormRun == 0;
    MESA_DISPATCH_BITS(coding.bits,
                       decode_into<kBits, kNormRun>(codes, coding, batch, groups, channels / groups * positions,
                                                    channels * positions, runs, sink, stream));
  })
  return (int)cudaGetLastError();
}

}  // namespace mesa
