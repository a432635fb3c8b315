#include "window_attention.cuh"

#include "window_attention_launch.cuh"

namespace mesa {
namespace {

// The queries in equal tiles of at most kMaxRows, fewer where the device's shared memory is too small for that.
AttentionTiles tiles_for(const Attention& a, bool backward, int most) {
  AttentionTiles t;
  const int n = a.tokens();
  t.d4 = (a.dim + 3) / 4;
  t.n4 = (n + 3) / 4;
  t.stride = 4 * (t.d4 | 1);
  t.columns = 4 * t.n4;
  const int wanted = (t.n4 * t.d4 + 31) / 32 * 32;
  t.threads = wanted < 128 ? 128 : wanted > most ? most : wanted;
  const int tiles = (n + kMaxRows - 1) / kMaxRows;
  t.rows = ((n + tiles - 1) / tiles + 3) / 4 * 4;
  const int64_t limit = shared_limit() - kStaticBytes;
  for (;;) {
    t.square = t.rows * t.columns;
    if (t.square < 4 * t.threads) t.square = 4 * t.threads;  // the sums over padded tokens pass through it
    if (t.shared_bytes(backward) <= limit || t.rows == 4) return t;
    t.rows -= 4;
  }
}

bool takes_vectors(const Attention& a, const void* x, const void* y, const void* z) {
  const uintptr_t bytes = 4 * size_of(a.dtype);
  return a.dim % 4 == 0 && (uintptr_t)x % bytes == 0 && (uintptr_t)y % bytes == 0 && (uintptr_t)z % bytes == 0;
}

template <class T, bool VECTOR>
int run_forward(const void* qkv, const float* pad, const float* bias, void* out, const Attention& a, void* stream) {
  const AttentionTiles t = tiles_for(a, false, kForwardThreads);
  const int64_t shared = t.shared_bytes(false);
  const int error = allow_shared(window_attention_kernel<T, VECTOR>);
  if (error) return error;
  MESA_LAUNCH((window_attention_kernel<T, VECTOR>), dim3(grid_for(a.windows() * a.heads, 1)), dim3(t.threads), shared, stream,
              static_cast<const T*>(qkv), pad, bias, static_cast<T*>(out), a, t);
  return (int)cudaGetLastError();
}

template <class T, bool VECTOR>
int run_backward(const void* grad, const void* qkv, const float* pad, const float* bias, void* gqkv, float* workspace,
                 const Attention& a, void* stream) {
  const AttentionTiles t = tiles_for(a, true, VECTOR ? kBackwardThreads : kScalarThreads);
  const int64_t shared = t.shared_bytes(true), runs = attention_runs(a);
  const int error = allow_shared(window_attention_backward_kernel<T, VECTOR>);
  if (error) return error;
  MESA_LAUNCH((window_attention_backward_kernel<T, VECTOR>), dim3(grid_for(runs * a.heads, 1)), dim3(t.threads), shared,
              stream, static_cast<const T*>(grad), static_cast<const T*>(qkv), pad, bias, static_cast<T*>(gqkv), workspace,
              runs, a, t);
  return (int)cudaGetLastError();
}

// Floats of the runs' sums, a multiple of four.
int64_t partial_sums(const Attention& a) {
  const int64_t count = attention_runs(a) * a.heads * ((int64_t)a.tokens() * a.tokens() + 2 * a.dim);
  return (count + 3) / 4 * 4;
}

}  // namespace

// Enough blocks for a large GPU, and at most 20 MiB of partial sums.
int64_t attention_runs(const Attention& a) {
  const int64_t square = (int64_t)a.tokens() * a.tokens();
  int64_t blocks = ((int64_t)5 << 20) / square;
  blocks = blocks > 1024 ? 1024 : blocks;
  const int64_t runs = blocks < a.heads ? 1 : blocks / a.heads;
  return runs < a.windows() ? runs : a.windows();
}
bool attention_fits(const Attention& a, bool backward) {
  const AttentionTiles t = tiles_for(a, backward, backward ? kBackwardThreads : kForwardThreads);
  return t.shared_bytes(backward) <= shared_limit() - kStaticBytes || mma_attention_workspace(a, backward) > 0;
}
int64_t attention_workspace(const Attention& a) { return mma_attention_workspace(a, false); }
int64_t attention_backward_workspace(const Attention& a) {
  return partial_sums(a) + mma_attention_workspace(a, true);
}

int launch_window_attention(const void* qkv, const float* pad, const float* bias, void* out, float* workspace,
                            const Attention& a, void* stream) {
  if (mma_attention_workspace(a, false) && aligned16(qkv) && aligned16(out))
    return launch_mma_attention(qkv, pad, bias, out, workspace, a, stream);
  const bool vectors = takes_vectors(a, qkv, out, out);
  MESA_DISPATCH(a.dtype, return vectors ? run_forward<scalar_t, true>(qkv, pad, bias, out, a, stream)
                                        : run_forward<scalar_t, false>(qkv, pad, bias, out, a, stream));
  return 0;
}

int launch_window_attention_backward(const void* grad, const void* qkv, const float* pad, const float* bias, void* gqkv,
                                     float* gpad, float* gbias, float* workspace, const Attention& a, void* stream) {
  int error = 0;
  if (mma_attention_workspace(a, true) && aligned16(qkv) && aligned16(gqkv) && aligned16(grad)) {
    error = launch_mma_attention_backward(grad, qkv, pad, bias, gqkv, workspace + partial_sums(a), workspace, a, stream);
  } else {
    const bool vectors = takes_vectors(a, qkv, gqkv, grad);
    MESA_DISPATCH(a.dtype,
                  error = vectors ? run_backward<scalar_t, true>(grad, qkv, pad, bias, gqkv, workspace, a, stream)
                                  : run_backward<scalar_t, false>(grad, qkv, pad, bias, gqkv, workspace, a, stream));
  }
  if (error) return error;
  const int64_t outputs = a.heads * ((int64_t)a.tokens() * a.tokens() + 2 * a.dim);
  MESA_LAUNCH(window_attention_sum_kernel, dim3(grid_for(outputs, 32)), dim3(32 * kSumSlices), 0, stream, workspace, gbias,
              gpad, attention_runs(a), a.heads, a.tokens(), a.dim);
  return (int)cudaGetLastError();
}

}  // namespace mesa
