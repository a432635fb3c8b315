#include "gelu.cuh"

#include "gelu.h"
#include "quantize.h"

namespace mesa {

namespace {

constexpr int kRowsPerTable = 16;  // runs a thread looks up for the entry that it evaluates

template <class T, int BITS, bool BACKWARD>
void from_codes(const uint8_t* codes, const Coding& coding, int64_t outer, int64_t groups, int64_t inner, bool tanh,
                const T* grad, T* out, void* stream) {
  constexpr int V = kVector<T>;
  const bool runs = aligned16(out) && (!BACKWARD || aligned16(grad));
  if (coding.block_size == 0 && runs && inner % V == 0 && (uintptr_t)codes % 8 == 0) {
    const Columns plan = plan_columns(outer, inner / V, kRowsPerTable);
    const dim3 grid(plan.blocks, grid_for(groups, 1));
    MESA_LAUNCH((gelu_table_kernel<T, BITS, BACKWARD>), grid, dim3(kCodeThreads), 0, stream, codes,
                static_cast<const float*>(coding.ranges), groups, inner, plan, grad, out, tanh);
    return;
  }
  decode_into<BITS, V>(codes, coding, outer, groups, inner, 0, runs, GeluSink<T, BACKWARD>{grad, out, tanh}, stream);
}

}  // namespace

int launch_gelu_quantize(const void* x, View3 view, DType dtype, bool tanh, const float* ranges, int bits,
                         int block_size, uint64_t seed, bool stochastic, void* y, uint8_t* codes, void* observed,
                         void* stream) {
  const Rounding rounding{seed, stochastic};
  if (!block_size) {
    const int error = launch_clear_ranges(static_cast<float*>(observed), view.groups, stream);
    if (error) return error;
  }
  if (view.outer * view.groups * view.inner == 0) return 0;
  MESA_DISPATCH(dtype, {
    const auto* in = static_cast<const scalar_t*>(x);
    const GeluSource<scalar_t> source{static_cast<scalar_t*>(y), tanh};
    const bool runs = aligned16(y);
    constexpr int V = kVector<scalar_t>;
    if (block_size) {
      MESA_DISPATCH_BITS(bits, quantize_in_blocks<scalar_t, kBits, V>(
                                   in, view, block_size, rounding, codes, static_cast<uint32_t*>(observed), runs, source,
                                   stream));
    } else {
      MESA_DISPATCH_BITS(bits, quantize_in_groups<scalar_t, kBits, V>(in, view, ranges, rounding, codes,
                                                                      static_cast<float*>(observed), runs, source,
                                                                      stream));
    }
  })
  return (int)cudaGetLastError();
}

int launch_gelu_from_codes(const uint8_t* codes, Coding coding, int64_t outer, int64_t groups, int64_t inner, bool tanh,
                           const void* grad, void* out, DType dtype, void* stream) {
  MESA_DISPATCH(dtype, {
    const auto* g = static_cast<const scalar_t*>(grad);
    auto* o = static_cast<scalar_t*>(out);
    if (grad) {
      MESA_DISPATCH_BITS(coding.bits, from_codes<scalar_t, kBits, true>(codes, coding, outer, groups, inner, tanh, g, o,
                                                                        stream));
    } else {
      MESA_DISPATCH_BITS(coding.bits, from_codes<scalar_t, kBits, false>(codes, coding, outer, groups, inner, tanh, g, o,
                                                                         stream));
    }
  })
  return (int)cudaGetLastError();
}

}  // namespace mesa
