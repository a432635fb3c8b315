#include "window_attention_mma.cuh"

#include "window_attention_launch.cuh"

namespace mesa {
namespace {

constexpr int kLargeWindow = 8 * 18;  // tokens of the largest window that the kernels take
constexpr float kLeastScale = 1e-6f;  // the bias divided by it must not overflow

// Whether the kernels were compiled with them, for the device at hand: an older one's PTX has empty bodies.
bool has_tensor_cores() {
#if defined(MESA_EMU)
  return emu::environment("MESA_EMU_CAPABILITY", 90) >= 80;
#else
  cudaFuncAttributes found;
  if (cudaFuncGetAttributes(&found, window_attention_mma_kernel<__half, MmaTiles<7, 1, 32>>) == cudaSuccess)
    return found.ptxVersion >= 80;
  (void)cudaGetLastError();
  return false;
#endif
}

// Blocks that a multiprocessor, and the device, hold at once.
struct Resident {
  int blocks;
  int64_t all;
};
template <class M, class K>
Resident resident_blocks(K kernel, bool backward, int buffers) {
  const int64_t dynamic = M::dynamic_bytes(backward, buffers);
#if defined(MESA_EMU)
  (void)kernel;
  return {(int)(emu::environment("MESA_EMU_ALL_SHARED", 228 * 1024) / (M::static_bytes(backward) + dynamic + 1024)), 8};
#else
  int device = 0, processors = 0, blocks = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, M::kThreads, (size_t)dynamic) != cudaSuccess) {
    (void)cudaGetLastError();
    return {0, 1};
  }
  return {blocks, (int64_t)processors * blocks};
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

// Whether a block may hold so many windows in shared memory at once.
template <class M>
bool fits(bool backward, int buffers) {
  return M::static_bytes(backward) + M::dynamic_bytes(backward, buffers) <= shared_limit();
}
// The next window too, unless that leaves a multiprocessor fewer blocks.
template <class M, class K>
int buffers_for(K kernel, bool backward) {
  return fits<M>(backward, 2) && resident_blocks<M>(kernel, backward, 2).blocks >= resident_blocks<M>(kernel, backward, 1).blocks
             ? 2
             : 1;
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
  const auto kernel = window_attention_mma_kernel<T, M>;
  const int error = allow_shared(kernel);
  if (error) return error;
  const int buffers = buffers_for<M>(kernel, false);
  const int64_t shared = M::dynamic_bytes(false, buffers), most = resident_blocks<M>(kernel, false, buffers).all / a.heads;
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
  const auto kernel = window_attention_backward_mma_kernel<T, M>;
  const int error = allow_shared(kernel);
  if (error) return error;
  const int buffers = buffers_for<M>(kernel, true);
  const int64_t shared = M::dynamic_bytes(true, buffers), runs = attention_runs(a);
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
    return fits<M>(backward, 1) ? a.heads * M::kWarps * M::kKeyTiles * 128 : 0;
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
