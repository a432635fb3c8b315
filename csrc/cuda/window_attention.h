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
// Whether the device has shared memory enough for a window.
bool attention_fits(const Attention& a, bool backward);
// Floats of the workspaces.
int64_t attention_workspace(const Attention& a);
int64_t attention_backward_workspace(const Attention& a);

// qkv [B, H, W, 3C], out and grad [B, H, W, C], gqkv as qkv: contiguous, of a.dtype. pad [3C] (or null), bias and
// gbias [heads, N, N], gpad [3C], workspace (16-byte aligned): float32.
int launch_window_attention(const void* qkv, const float* pad, const float* bias, void* out, float* workspace,
                            const Attention& a, void* stream);
int launch_window_attention_backward(const void* grad, const void* qkv, const float* pad, const float* bias, void* gqkv,
                                     float* gpad, float* gbias, float* workspace, const Attention& a, void* stream);

// Their kernels for tensor cores, of tensors aligned to 16 bytes. Backward, the sums of the runs stay in the workspace.
// Floats that the bias takes as these kernels read it; 0: they do not take this attention, or the device has none.
int64_t mma_attention_workspace(const Attention& a, bool backward);
int launch_mma_attention(const void* qkv, const float* pad, const float* bias, void* out, float* arranged,
                         const Attention& a, void* stream);
int launch_mma_attention_backward(const void* grad, const void* qkv, const float* pad, const float* bias, void* gqkv,
                                  float* arranged, float* workspace, const Attention& a, void* stream);

}  // namespace mesa
