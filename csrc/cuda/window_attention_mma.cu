#include "window_attention_mma.cuh"

#include "window_attention_launch.cuh"

namespace mesa {
namespace {

constexpr int kLargeWindow = 8 * 18;  // tokens of the largest window that the kernels take
constexpr float kLeastScale = 1e-6f;  // the bias divided by it must not overflow

bool has_tensor_cores() {
#if defined(MESA_EMU)
  return emu::environment("MESA_EMU_CAPABILITY", 90) >= 80;
#else
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 8;
#endif
}

// Blocks that the device holds at once.
template <class K>
int64_t resident_blocks(K kernel, int threads, int64_t shared) {
#if defined(MESA_EMU)
  (void)kernel, (void)threads, (void)shared;
  return 8;
#else
  int device = 0, processors = 0, blocks = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, (size_t)shared) != cudaSuccess)
    return 1;
  return (int64_t)processors * blocks;
#endif
}

// Calls f with the MmaTiles that fit. Backward, wide heads of large windows leave registers for two tiles at a time.
template <bool BACKWARD, class F>
int with_tiles(const Attention& a, F f) {
  const int n = a.tokens();
  if (a.dim > 32) return n <= 64 ? f(MmaTiles<8, 1, 64>()) : f(MmaTiles<BACKWARD ? 2 : 6, BACKWARD ? 9 : 3, 64>());
  if (n <= 56) return f(MmaTiles<7, 1, 32>());
  return n <= 64 ? f(MmaTiles<8, 1, 32>()) : f(MmaTiles<6, 3, 32>());
}

// Windows that a block holds in shared memory at once: the next one too, unless that leaves a multiprocessor fewer blocks;
// 0: not even one fits.
template <class M>
int buffers_for(bool backward) {
  const int64_t limit = shared_limit(), all = shared_of_multiprocessor();
  int buffers = 0;
  int64_t most = -1;
  for (int n = 2; n > 0; --n) {
    const int64_t bytes = M::static_bytes(backward) + M::dynamic_bytes(backward, n);
    const int64_t room = all / (bytes + kReservedShared), blocks = room < M::blocks(backward) ? room : M::blocks(backward);
    if (bytes <= limit && blocks > most) buffers = n, most = blocks;
  }
  return buffers;
}

Plan plan_for(const Attention& a, int64_t runs, int buffers) {
  Plan p;
  p.runs = (int)runs;
  p.least = (int)(a.windows() / runs);
  p.longer = (int)(a.windows() % runs);
  p.buffers = buffers;
  p.tokens = a.tokens();
  p.channels = a.heads * a.dim;
  p.per_image = a.map.rows * a.map.columns;
  p.scale2 = a.scale * kLog2e;
  p.mask = kRegionMask / a.scale;
  return p;
}

template <class M>
void arrange_bias(const float* bias, float* to, const Attention& a, void* stream) {
  const int64_t count = (int64_t)a.heads * M::kWarps * M::kKeyTiles * 32;
  MESA_LAUNCH(attention_bias_kernel, dim3(grid_for(count, 256)), dim3(256), 0, stream, bias,
              reinterpret_cast<float4*>(to), a.scale, a.heads, a.tokens(), M::kWarps, M::kKeyTiles);
}

template <class T, class M>
int run_forward(const void* qkv, const float* pad, const float* bias, void* out, float* arranged, const Attention& a,
                void* stream) {
  const int buffers = buffers_for<M>(false);
  const int64_t shared = M::dynamic_bytes(false, buffers);
  const int error = allow_shared(window_attention_mma_kernel<T, M>, shared);
  if (error) return error;
  const int64_t most = resident_blocks(window_attention_mma_kernel<T, M>, M::kThreads, shared) / a.heads;
  const int64_t runs = most < 1 ? 1 : most < a.windows() ? most : a.windows();
  arrange_bias<M>(bias, arranged, a, stream);
  MESA_LAUNCH((window_attention_mma_kernel<T, M>), dim3(grid_for(runs * a.heads, 1)), dim3(M::kThreads), shared, stream,
              static_cast<const T*>(qkv), pad, reinterpret_cast<const float4*>(arranged), static_cast<T*>(out), a,
              plan_for(a, runs, buffers));
  return (int)cudaGetLastError();
}

template <class T, class M>
int run_backward(const void* grad, const void* qkv, const float* pad, const float* bias, void* gqkv, float* arranged,
                 float* workspace, const Attention& a, void* stream) {
  const int buffers = buffers_for<M>(true);
  const int64_t shared = M::dynamic_bytes(true, buffers), runs = attention_runs(a);
  const int error = allow_shared(window_attention_backward_mma_kernel<T, M>, shared);
  if (error) return error;
  arrange_bias<M>(bias, arranged, a, stream);
  MESA_LAUNCH((window_attention_backward_mma_kernel<T, M>), dim3(grid_for(runs * a.heads, 1)), dim3(M::kThreads), shared,
              stream, static_cast<const T*>(grad), static_cast<const T*>(qkv), pad,
              reinterpret_cast<const float4*>(arranged), static_cast<T*>(gqkv), workspace, a, plan_for(a, runs, buffers));
  return (int)cudaGetLastError();
}

}  // namespace

int64_t mma_attention_workspace(const Attention& a, bool backward) {
  const int64_t places = (int64_t)a.batch * a.map.height * a.map.width;
  if (a.dtype == DType::f32 || a.dim % 8 || a.dim > 64 || a.tokens() > kLargeWindow || places > INT32_MAX ||
      !(a.scale > kLeastScale) || !has_tensor_cores())
    return 0;
  const auto floats = [&](auto tiles) {
    using M = decltype(tiles);
    return buffers_for<M>(backward) ? a.heads * M::kWarps * M::kKeyTiles * 128 : 0;
  };
  return backward ? with_tiles<true>(a, floats) : with_tiles<false>(a, floats);
}

int launch_mma_attention(const void* qkv, const float* pad, const float* bias, void* out, float* arranged,
                         const Attention& a, void* stream) {
  return with_tiles<false>(a, [&](auto tiles) {
    using M = decltype(tiles);
    return a.dtype == DType::f16 ? run_forward<__half, M>(qkv, pad, bias, out, arranged, a, stream)
                                 : run_forward<__nv_bfloat16, M>(qkv, pad, bias, out, arranged, a, stream);
  });
}

int launch_mma_attention_backward(const void* grad, const void* qkv, const float* pad, const float* bias, void* gqkv,
                                  float* arranged, float* workspace, const Attention& a, void* stream) {
  return with_tiles<true>(a, [&](auto tiles) {
    using M = decltype(tiles);
    return a.dtype == DType::f16
               ? run_backward<__half, M>(grad, qkv, pad, bias, gqkv, arranged, workspace, a, stream)
               : run_backward<__nv_bfloat16, M>(grad, qkv, pad, bias, gqkv, arranged, workspace, a, stream);
  });
}

}  // namespace mesa
