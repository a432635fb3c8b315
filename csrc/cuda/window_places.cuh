#pragma once
// What is where in one window, found by all threads of a block.
#include "../common/window_attention.h"
#include "device.cuh"

namespace mesa {

// Token, counted from `first` on (-1 where the map is padded), and region of each position; -2 and 0 from the window's
// end to `count`.
template <class S>
__device__ __forceinline__ void find_tokens(const WindowMap& m, WindowAt at, int first, int count, S token, S region) {
#pragma unroll 1
  for (int p = (int)threadIdx.x; p < count; p += (int)blockDim.x) {
    const int row = (unsigned)p / (unsigned)m.window, column = p - row * m.window;
    const int t = window_token(m, at, row, column);
    token[p] = row >= m.window ? -2 : t < 0 ? -1 : first + t;
    region[p] = row >= m.window ? 0 : window_region(m, at, row, column);
  }
}

// The same, and the list of positions that hold a token (in order); returns how many do.
template <class S>
__device__ __forceinline__ int find_places(const WindowMap& m, WindowAt at, S token, S region, S real) {
  int columns = 0, rows = 0;
  for (int i = 0; i < m.window; ++i) {
    columns += window_x(m, at, i) >= 0;
    rows += window_y(m, at, i) >= 0;
  }
  const int tokens = m.window * m.window;
  find_tokens(m, at, 0, tokens, token, region);
  for (int p = (int)threadIdx.x; p < tokens; p += (int)blockDim.x) {
    if (token[p] < 0) continue;
    const int row = (unsigned)p / (unsigned)m.window, column = p - row * m.window;
    int before = 0;
    for (int i = 0; i < row; ++i) before += window_y(m, at, i) >= 0 ? columns : 0;
    for (int i = 0; i < column; ++i) before += window_x(m, at, i) >= 0;
    real[before] = p;
  }
  return rows * columns;
}

}  // namespace mesa
