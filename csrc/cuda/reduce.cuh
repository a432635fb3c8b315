#pragma once
// The last stage of sums over many blocks: rows of partial sums, added in an order that does not change.
#include "device.cuh"

namespace mesa {

constexpr int kSumColumns = 32, kSumLanes = 8;

// out[i] = scale * sum over r of partial[r][i]. A block takes 32 columns, 8 lanes a column.
template <class Out>
__global__ void __launch_bounds__(kSumColumns* kSumLanes)
    sum_rows_kernel(const float* __restrict__ partial, int64_t rows, int64_t columns, Out* __restrict__ out) {
  MESA_SHARED(float, sums, kSumColumns * kSumLanes);
  const int column = (int)(threadIdx.x % kSumColumns), part = (int)(threadIdx.x / kSumColumns);
  for (int64_t base = (int64_t)blockIdx.x * kSumColumns; base < columns; base += (int64_t)gridDim.x * kSumColumns) {
    float s = 0.0f;
    if (base + column < columns)
      for (int64_t r = part; r < rows; r += kSumLanes) s += partial[r * columns + base + column];
    __syncthreads();
    sums[threadIdx.x] = s;
    __syncthreads();
    if (part == 0 && base + column < columns) {
      float all = 0.0f;
      for (int p = 0; p < kSumLanes; ++p) all += sums[p * kSumColumns + column];
      out[base + column] = all;
    }
  }
}

inline void sum_rows(const float* partial, int64_t rows, int64_t columns, float* out, void* stream) {
  MESA_LAUNCH((sum_rows_kernel<float>), dim3(grid_for(columns, kSumColumns)), dim3(kSumColumns * kSumLanes), 0, stream,
              partial, rows, columns, out);
}

}  // namespace mesa
