#pragma once
#include "../common/window_attention.h"
#include "launch.h"
namespace mesa {

constexpr int kMaxWindow = 16;

struct Attention {
  WindowMap map;
  int batch, heads, dim;
  float scale;
  DType dtype;
  MESA_HD int64_t windows() const { return (int64_t)batch * map.rows * map.columns; }
  MESA_HD int tokens() const { return map.window * map.window; }
};

// The windows are cut into this many runs, whatever the device; each (run, head) sums its bias gradient on its own.
int64_t attention_runs(const Attention& a);
// Floats of the workspace of the backward pass.
int64_t attention_workspace(const Attention& a);

// qkv [B, H, W, 3C], out and grad [B, H, W, C], gqkv as qkv: contiguous, of a.dtype. pad [3C] (or null), bias and
// gbias [heads, N, N], gpad [3C]: float32.
int launch_window_attention(const void* qkv, const float* pad, const float* bias, void* out, const Attention& a,
                            void* stream);
int launch_window_attention_backward(const void* grad, const void* qkv, const float* pad, const float* bias, void* gqkv,
                                     float* gpad, float* gbias, float* workspace, const Attention& a, void* stream);

}  // namespace mesa
