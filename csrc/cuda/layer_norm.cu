#include "layer_norm.cuh"

#include "layer_norm.h"
#include "quantize.h"
#include "reduce.cuh"

namespace mesa {

namespace {

constexpr int kMostPartialRows = 512;  // whatever the device: the sums must not depend on it

template <class T, Keep KEEP>
void normalise_rows(const T* x, const Rows& plan, int64_t row_stride, int64_t groups, int block_size,
                    const float* weight, const float* bias, float eps, const float* ranges, int bits, Rounding rounding,
                    T* y, float* mean, float* rstd, uint8_t* codes, void* observed, void* stream) {
  const dim3 threads(kRowThreads);
  // Ranges of groups are collected in registers over the rows of a team: several rows each.
  const dim3 grid(grid_for(plan.rows, (int64_t)plan.at_once * (KEEP == Keep::groups ? 4 : 1)));
  const size_t shared = KEEP == Keep::blocks ? sizeof(float) * plan.at_once * plan.channels : 0;
#define MESA_GO(RUNS, WIDE)                                                                                     \
  MESA_LAUNCH((layer_norm_rows_kernel<T, KEEP, RUNS, WIDE>), grid, threads, shared, stream, x, row_stride, plan, \
              groups, block_size, weight, bias, eps, ranges, bits, rounding, y, mean, rstd, codes, observed)
  if (!plan.in_a_warp()) {
    MESA_GO(kMostEach, true);
  } else if (plan.runs > 4) {
    MESA_GO(kMostEach, false);
  } else {
    MESA_GO(4, false);
  }
#undef MESA_GO
}

// The most rows a thread block can take that are whole blocks of codes; 0 where that would leave many lanes idle.
int rows_of_whole_blocks(const Rows& plan, int block_size) {
  int at_once = plan.at_once;
  while (at_once > 0 && (int64_t)at_once * plan.channels % block_size) --at_once;
  return 2 * at_once < plan.at_once ? 0 : at_once;
}

template <class T, int BITS>
void forward(const T* x, int64_t rows, int64_t channels, int64_t row_stride, int64_t channel_stride, const float* weight,
             const float* bias, float eps, const float* ranges, int64_t groups, int block_size, Rounding rounding, T* y,
             float* mean, float* rstd, uint8_t* codes, void* observed, void* stream) {
  constexpr int V = kVector<T>;
  const bool runs = aligned16(x) && aligned16(y) && channel_stride == 1 && row_stride % V == 0 && channels % V == 0 &&
                    (!weight || aligned16(weight)) && (!bias || aligned16(bias));
  const bool in_registers = runs && channels <= kLongestRow;
  Rows plan = plan_rows(rows, channels, V);
  if (in_registers && !block_size && channels / groups % V == 0 && groups <= kTableGroups) {
    normalise_rows<T, Keep::groups>(x, plan, row_stride, groups, 0, weight, bias, eps, ranges, BITS, rounding, y, mean,
                                    rstd, codes, observed, stream);
    return;
  }
  const int whole = in_registers && block_size ? rows_of_whole_blocks(plan, block_size) : 0;
  if (whole) {
    plan.at_once = whole;
    normalise_rows<T, Keep::blocks>(x, plan, row_stride, groups, block_size, weight, bias, eps, nullptr, BITS, rounding,
                                    y, mean, rstd, codes, observed, stream);
    return;
  }
  // Statistics first, then all rows as one sequence.
  if (in_registers) {
    normalise_rows<T, Keep::statistics>(x, plan, row_stride, groups, 0, nullptr, nullptr, eps, nullptr, 0, rounding,
                                        nullptr, mean, rstd, nullptr, nullptr, stream);
  } else {
    const RowOrder order = row_order(channels);
    const dim3 teams(grid_for(rows, kCodeThreads * kStatsRun / order.width)), blocks(grid_for(rows, 1));
    if (channels <= kLongestRow) {
      MESA_LAUNCH((layer_norm_stats_kernel<T>), teams, dim3(kCodeThreads), 0, stream, x, rows, channels, order,
                  row_stride, channel_stride, eps, mean, rstd);
    } else if (runs) {
      MESA_LAUNCH((layer_norm_long_stats_kernel<T, true>), blocks, dim3(kCodeThreads), 0, stream, x, rows, channels,
                  order, row_stride, channel_stride, eps, mean, rstd);
    } else {
      MESA_LAUNCH((layer_norm_long_stats_kernel<T, false>), blocks, dim3(kCodeThreads), 0, stream, x, rows, channels,
                  order, row_stride, channel_stride, eps, mean, rstd);
    }
  }
  const View3 view{rows, groups, channels / groups, row_stride, channels / groups * channel_stride, channel_stride};
  const NormalisedRows<T> source{y, mean, rstd, weight, bias, channels};
  if (block_size) {
    quantize_in_blocks<T, BITS, V>(x, view, block_size, rounding, codes, static_cast<uint32_t*>(observed), runs, source,
                                   stream);
  } else {
    quantize_in_groups<T, BITS, V>(x, view, ranges, rounding, codes, static_cast<float*>(observed), runs, source,
                                   stream);
  }
}

template <class T, bool BLOCKS>
void backward_rows(const T* grad, const Lanes& plan, const uint8_t* codes, const Coding& coding, int64_t groups,
                   const float* rstd, const float* weight, T* gx, float* partial, int blocks, void* stream) {
  const BlockIndex index = block_index(coding.block_size);
  const int slices = kRowThreads / (plan.team < 32 ? 32 : plan.team);
  const size_t shared = sizeof(float) * 2 * plan.channels * slices;
  const dim3 grid(blocks), threads(kRowThreads);
#define MESA_GO(RUNS, WIDE)                                                                                          \
  MESA_LAUNCH((layer_norm_backward_kernel<T, BLOCKS, RUNS, WIDE>), grid, threads, shared, stream, grad, plan, codes, \
              coding.ranges, index, coding.bits, groups, rstd, weight, gx, partial)
  if (plan.runs <= 4) {
    if (plan.team <= 32) {
      MESA_GO(4, false);
    } else {
      MESA_GO(4, true);
    }
  } else if (plan.team <= 32) {
    MESA_GO(8, false);
  } else {
    MESA_GO(8, true);
  }
#undef MESA_GO
}

template <class T>
void backward(const T* grad, int64_t rows, int64_t channels, const uint8_t* codes, const Coding& coding, int64_t groups,
              const float* rstd, const float* weight, T* gx, float* partial, float* sums, void* stream) {
  constexpr int V = kBackwardRun;
  const int blocks = (int)layer_norm_partial_rows(rows, channels);
  const Lanes plan = plan_lanes(rows, channels);
  if (plan.team > 0 && channels % V == 0 && channels / groups % V == 0 && aligned16(grad) && aligned16(gx) &&
      (uintptr_t)codes % 8 == 0 && (!weight || aligned16(weight))) {
    if (coding.block_size) {
      backward_rows<T, true>(grad, plan, codes, coding, groups, rstd, weight, gx, partial, blocks, stream);
    } else {
      backward_rows<T, false>(grad, plan, codes, coding, groups, rstd, weight, gx, partial, blocks, stream);
    }
  } else {
    const AnyRow normalised{codes, coding.ranges, block_index(coding.block_size), channels, groups, coding.bits};
    MESA_LAUNCH((layer_norm_backward_any_kernel<T>), dim3(grid_for(rows, 1)), dim3(kCodeThreads), 0, stream, grad,
                rows, normalised, rstd, weight, gx);
    MESA_LAUNCH((layer_norm_columns_kernel<T>), dim3(grid_for(channels, kCodeThreads), blocks), dim3(kCodeThreads),
                0, stream, grad, rows, normalised, partial);
  }
  sum_rows(partial, blocks, 2 * channels, sums, stream);
}

}  // namespace

int64_t layer_norm_partial_rows(int64_t rows, int64_t channels) {
  const int64_t wanted = ceil_div(rows, channels > kLongestInWarp ? 16 : 32);
  const int64_t most = grid_limit() < kMostPartialRows ? grid_limit() : kMostPartialRows;
  return wanted < 1 ? 1 : wanted < most ? wanted : most;
}

int launch_layer_norm_quantize(const void* x, int64_t rows, int64_t channels, int64_t row_stride,
                               int64_t channel_stride, DType dtype, const float* weight, const float* bias, float eps,
                               const float* ranges, int64_t groups, int bits, int block_size, uint64_t seed,
                               bool stochastic, void* y, float* mean, float* rstd, uint8_t* codes, void* observed,
                               void* stream) {
  const Rounding rounding{seed, stochastic};
  if (!block_size) {
    const int error = launch_clear_ranges(static_cast<float*>(observed), groups, stream);
    if (error) return error;
  }
  if (rows == 0 || channels == 0) return 0;
  MESA_DISPATCH(dtype, {
    MESA_DISPATCH_BITS(bits, forward<scalar_t, kBits>(static_cast<const scalar_t*>(x), rows, channels, row_stride,
                                                      channel_stride, weight, bias, eps, ranges, groups, block_size,
                                                      rounding, static_cast<scalar_t*>(y), mean, rstd, codes, observed,
                                                      stream));
  })
  return (int)cudaGetLastError();
}

int launch_layer_norm_backward(const void* grad, int64_t rows, int64_t channels, DType dtype, const uint8_t* codes,
                               Coding coding, int64_t groups, const float* rstd, const float* weight, void* gx,
                               float* partial, float* sums, void* stream) {
  MESA_DISPATCH(dtype, {
    backward(static_cast<const scalar_t*>(grad), rows, channels, codes, coding, groups, rstd, weight,
             static_cast<scalar_t*>(gx), partial, sums, stream);
  })
  return (int)cudaGetLastError();
}

}  // namespace mesa
