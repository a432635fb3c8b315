#include "quantize.cuh"

#include "quantize.h"

namespace mesa {

namespace {

template <class T, int BITS>
void quantize_groups(const T* x, const View3& v, const float* ranges, Rounding rounding, uint8_t* codes,
                     float* observed, void* stream) {
  const int64_t n = v.outer * v.groups * v.inner;
  const dim3 threads(kCodeThreads);
  if (vectors_fit<T>(x, v)) {
    const Columns plan = plan_columns(v.outer, v.groups * v.inner / kVector<T>);
    MESA_LAUNCH((quantize_groups_kernel<T, BITS>), dim3(plan.blocks), threads, 0, stream, x, v, plan, ranges, rounding,
                codes, observed);
  } else {
    MESA_LAUNCH((quantize_groups_any_kernel<T, BITS>), dim3(grid_for(n, 8 * kCodeThreads)), threads, 0, stream, x, v, n,
                ranges, rounding, codes, observed);
  }
}

template <class T, int BITS, int RUNS>
void quantize_blocks(const T* x, const View3& v, int block_size, int team, Rounding rounding, uint8_t* codes,
                     uint32_t* ranges, void* stream) {
  const int64_t n = v.outer * v.groups * v.inner;
  const bool contiguous = is_contiguous(v);
  const int64_t blocks = ceil_div(n, block_size);
  if (contiguous ? aligned16(x) : vectors_fit<T>(x, v)) {
    MESA_LAUNCH((quantize_blocks_kernel<T, BITS, RUNS>), dim3(grid_for(blocks, kCodeThreads / team)),
                dim3(kCodeThreads), 0, stream, x, v, contiguous, n, block_size, team, rounding, codes, ranges);
  } else {
    MESA_LAUNCH((quantize_blocks_any_kernel<T, BITS>), dim3(grid_for(blocks, kCodeThreads / 32)), dim3(kCodeThreads), 0,
                stream, x, v, n, block_size, rounding, codes, ranges);
  }
}

// Values of a row such that a column keeps its channel (and group); 0 where there is none.
int64_t row_length(int64_t n, int64_t groups, int64_t inner, bool blocks, const Affine& a, int V) {
  const int64_t period = a.channels * a.spatial;
  if (!blocks) {
    const int64_t row = groups * inner;
    return inner % V == 0 && (!period || row % period == 0) ? row : 0;
  }
  if (period) return period % V == 0 ? period : 0;
  return ceil_div(ceil_div(n, kRowsInFlight), 32 * V) * 32 * V;
}

template <class T, int BITS>
void dequantize(const uint8_t* codes, const Coding& coding, int64_t outer, int64_t groups, int64_t inner,
                const Affine& affine, T* y, void* stream) {
  constexpr int V = kVector<T>;
  const int64_t n = outer * groups * inner;
  const bool in_blocks = coding.block_size != 0, plain = !affine.channels && !affine.relu;
  const BlockIndex blocks = block_index(coding.block_size);
  const int64_t row = row_length(n, groups, inner, in_blocks, affine, V);
  const dim3 threads(kCodeThreads);
  if (!row || !aligned16(y) || (uintptr_t)codes % 8) {
    MESA_LAUNCH((dequantize_any_kernel<T, BITS>), dim3(grid_for(n, kCodeThreads)), threads, 0, stream, codes,
                coding.ranges, groups, inner, blocks, n, affine, y);
    return;
  }
  const Columns plan = plan_columns(ceil_div(n, row), row / V);
#define MESA_GO(BLOCKS, AFFINE)                                                                                    \
  MESA_LAUNCH((dequantize_kernel<T, BITS, BLOCKS, AFFINE>), dim3(plan.blocks), threads, 0, stream, codes,          \
              coding.ranges, groups, inner, blocks, plan, n, affine, y)
  if (in_blocks) {
    if (plain) { MESA_GO(true, false); } else { MESA_GO(true, true); }
  } else {
    if (plain) { MESA_GO(false, false); } else { MESA_GO(false, true); }
  }
#undef MESA_GO
}

}  // namespace

int launch_clear_ranges(float* observed, int64_t groups, void* stream) {
  MESA_LAUNCH(clear_ranges_kernel, dim3(grid_for(groups, kCodeThreads)), dim3(kCodeThreads), 0, stream, observed,
              groups);
  return (int)cudaGetLastError();
}

int launch_update_ranges(float* running, const float* observed, float decay, int64_t groups, void* stream) {
  MESA_LAUNCH(update_ranges_kernel, dim3(grid_for(groups, kCodeThreads)), dim3(kCodeThreads), 0, stream, running,
              observed, decay, groups);
  return (int)cudaGetLastError();
}

int launch_quantize_groups(const void* x, View3 view, DType dtype, const float* ranges, int bits, uint64_t seed,
                           bool stochastic, uint8_t* codes, float* observed, void* stream) {
  const Rounding rounding{seed, stochastic};
  const int error = launch_clear_ranges(observed, view.groups, stream);
  if (error || view.outer * view.groups * view.inner == 0) return error;
  MESA_DISPATCH(dtype, {
    const auto* in = static_cast<const scalar_t*>(x);
    if (ranges) {
      MESA_DISPATCH_BITS(bits, quantize_groups<scalar_t, kBits>(in, view, ranges, rounding, codes, observed,
                                                                          stream));
    } else {
      quantize_groups<scalar_t, 0>(in, view, nullptr, rounding, nullptr, observed, stream);
    }
  })
  return (int)cudaGetLastError();
}

int launch_quantize_blocks(const void* x, View3 view, DType dtype, int bits, int block_size, uint64_t seed,
                           bool stochastic, uint8_t* codes, void* ranges, void* stream) {
  const Rounding rounding{seed, stochastic};
  auto* out = static_cast<uint32_t*>(ranges);
  MESA_DISPATCH(dtype, {
    const auto* in = static_cast<const scalar_t*>(x);
    constexpr int kRun = kVector<scalar_t>;
    constexpr int kFew = kInFlight<scalar_t>, kMany = 1024 / (32 * kRun);  // runs a lane
    int team = 1;
    while (team < 32 && team * kFew * kRun < block_size) team *= 2;
    if (team * kFew * kRun >= block_size) {
      MESA_DISPATCH_BITS(bits, quantize_blocks<scalar_t, kBits, kFew>(in, view, block_size, team, rounding, codes, out,
                                                                      stream));
    } else {
      MESA_DISPATCH_BITS(bits, quantize_blocks<scalar_t, kBits, kMany>(in, view, block_size, team, rounding, codes, out,
                                                                       stream));
    }
  })
  return (int)cudaGetLastError();
}

int launch_dequantize(const uint8_t* codes, Coding coding, int64_t outer, int64_t groups, int64_t inner,
                      const float* scale, const float* shift, int64_t channels, int64_t spatial, bool relu, void* y,
                      DType dtype, void* stream) {
  const Affine affine{scale, shift, channels, spatial, relu};
  MESA_DISPATCH(dtype, {
    auto* out = static_cast<scalar_t*>(y);
    MESA_DISPATCH_BITS(coding.bits, dequantize<scalar_t, kBits>(codes, coding, outer, groups, inner, affine,
                                                                          out, stream));
  })
  return (int)cudaGetLastError();
}

}  // namespace mesa
