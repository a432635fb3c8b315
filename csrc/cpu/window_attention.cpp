// Window attention between qkv and proj, forward and backward: arguments, work sharing, and the choice of the kernel's
// instruction set. No tensor larger than one N x N map per thread (and, backward, kPartials of them) is made.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <tuple>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include "../common/window_attention.h"
#include "../common/window_attention_check.h"

namespace mesa {
namespace {

using torch::stable::Tensor;
using ScalarType = torch::headeronly::ScalarType;

constexpr int kAlign = 16;       // rows of the scratch buffers are padded to this many floats
constexpr int kMaxWindow = 64;   // index arithmetic and memory stay small
constexpr int kPartials = 64;    // bias gradients that are summed apart from each other, over all heads

struct Problem {
  const void* qkv;
  const void* grad;
  void* out;            // the output, or gqkv
  const float* pad;     // [3C] or null
  const float* bias;    // [heads, N, padded N], -inf in the padding
  WindowMap map;
  int batch, heads, dim, channels, tokens, dim_padded, tokens_padded;
  float scale;
  int64_t map_tokens() const { return (int64_t)map.height * map.width; }
  int64_t windows() const { return (int64_t)map.rows * map.columns; }
};

// What is where in one window; the arrays belong to the thread.
struct Places {
  int* token;       // [N] token of each position, -1 where padded
  int* real;        // positions that hold a token
  int* padded;      // the other positions
  int* keys;        // real, then the first padded one: padded keys are all the same
  int real_count, padded_count;
  float* region;    // [padded N]
  float* regions;   // region, or null where the window holds one region only
  float* inverse;   // [N] scratch: 1 / sum of a row's exponentials
};

void find_places(Places& places, const WindowMap& map, int w) {
  const WindowAt at = window_at(map, w);
  places.real_count = places.padded_count = 0;
  places.regions = window_has_regions(map, at) ? places.region : nullptr;
  for (int row = 0, p = 0; row < map.window; ++row)
    for (int column = 0; column < map.window; ++column, ++p) {
      const int token = window_token(map, at, row, column);
      places.token[p] = token;
      if (token >= 0)
        places.keys[places.real_count] = places.real[places.real_count] = p, ++places.real_count;
      else
        places.padded[places.padded_count++] = p;
      places.region[p] = (float)window_region(map, at, row, column);
    }
  if (places.padded_count) places.keys[places.real_count] = places.padded[0];
}

// The unit that a thread takes up next: its tokens are fetched into the cache while this one is computed.
struct Next {
  const Places* places;  // null: there is none
  int64_t image;
  int head;
};

// Hands out pieces of a buffer.
struct Scratch {
  float* next;
  explicit Scratch(float* buffer) : next(buffer) {}
  float* take(int64_t n) {
    float* p = next;
    next += (n + kAlign - 1) / kAlign * kAlign;
    return p;
  }
};

// A thread's memory, zeroed: the padding of the buffers stays zero.
struct Workspace {
  std::unique_ptr<float, decltype(&free)> memory{nullptr, &free};
  std::vector<int> indices;
  Places places[2];  // of this window and of the next
  float* scratch;
  explicit Workspace(const Problem& p) : indices(2 * (4 * p.tokens + 1)) {
    const int64_t tile = (int64_t)p.tokens_padded * p.dim_padded, square = (int64_t)p.tokens * p.tokens_padded;
    const int64_t size = 6 * tile + 2 * (square + kAlign) + 3 * p.tokens_padded;
    memory.reset(static_cast<float*>(aligned_alloc(64, (size * sizeof(float) + 63) / 64 * 64)));
    if (!memory) throw std::bad_alloc();
    std::fill_n(memory.get(), size, 0.0f);
    scratch = memory.get() + 3 * p.tokens_padded;
    for (int i = 0; i < 2; ++i) {
      places[i].token = indices.data() + i * (4 * p.tokens + 1);
      places[i].real = places[i].token + p.tokens;
      places[i].padded = places[i].real + p.tokens;
      places[i].keys = places[i].padded + p.tokens;
      places[i].region = memory.get() + i * p.tokens_padded;
      places[i].inverse = memory.get() + 2 * p.tokens_padded;
    }
  }
};

#define MESA_KERNEL "window_attention_kernel.h"
#include "each_instruction_set.h"

#if defined(MESA_HAS_X86_LEVELS)
#define MESA_BEST(T, function) \
  (instruction_set() == 4 ? v4::function<T> : instruction_set() == 3 ? v3::function<T> : plain::function<T>)
#else
#define MESA_BEST(T, function) plain::function<T>
#endif

template <class T>
void run_forward(const Problem& p) {
  const auto unit = MESA_BEST(T, forward_unit);
  torch::stable::parallel_for(0, p.batch * p.windows() * p.heads, 4, [&](int64_t begin, int64_t end) {
    Workspace w(p);
    int64_t window = begin / p.heads;
    int head = (int)(begin % p.heads), now = 0;
    find_places(w.places[now], p.map, (int)(window % p.windows()));
    for (int64_t u = begin; u < end; ++u) {
      const bool last = head + 1 == p.heads, more = u + 1 < end;
      if (last && more) find_places(w.places[1 - now], p.map, (int)((window + 1) % p.windows()));
      const Next next{more ? &w.places[last ? 1 - now : now] : nullptr, (window + last) / p.windows(), last ? 0 : head + 1};
      unit(p, w.places[now], window / p.windows(), head, w.scratch, next);
      window += last;
      head = next.head;
      now = last ? 1 - now : now;
    }
  });
}

// The windows are cut into the same runs whatever the number of threads; each run has a sum of its own, added in order.
template <class T>
void run_backward(const Problem& p, float* gpad, float* gbias) {
  const auto unit = MESA_BEST(T, backward_unit);
  const int64_t windows = p.batch * p.windows();
  const int64_t runs = std::min<int64_t>(windows, (kPartials + p.heads - 1) / p.heads);
  const int64_t map = (int64_t)p.tokens * p.tokens_padded, sum = map + 2 * p.dim;
  std::vector<float> sums(runs * p.heads * sum, 0.0f);
  torch::stable::parallel_for(0, runs * p.heads, 1, [&](int64_t begin, int64_t end) {
    Workspace w(p);
    for (int64_t u = begin; u < end; ++u) {
      const int64_t run = u / p.heads;
      float* to = sums.data() + u * sum;
      const int64_t first = windows * run / runs, stop = windows * (run + 1) / runs;
      const int head = (int)(u % p.heads);
      find_places(w.places[first % 2], p.map, (int)(first % p.windows()));
      for (int64_t window = first; window < stop; ++window) {
        const bool more = window + 1 < stop;
        if (more) find_places(w.places[1 - window % 2], p.map, (int)((window + 1) % p.windows()));
        const Next next{more ? &w.places[1 - window % 2] : nullptr, (window + 1) / p.windows(), head};
        unit(p, w.places[window % 2], window / p.windows(), head, w.scratch, next, to, to + map);
      }
    }
  });
  torch::stable::parallel_for(0, (int64_t)p.heads * p.tokens, 64, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* from = sums.data() + r / p.tokens * sum + r % p.tokens * p.tokens_padded;
      float* to = gbias + r * p.tokens;
      std::copy_n(from, p.tokens, to);
      for (int64_t run = 1; run < runs; ++run) {
        from += p.heads * sum;
        for (int j = 0; j < p.tokens; ++j) to[j] += from[j];
      }
    }
  });
  std::fill_n(gpad, 3 * p.channels, 0.0f);
  for (int64_t u = 0; u < runs * p.heads; ++u)
    for (int i = 0; i < 2 * p.dim; ++i)
      gpad[(1 + i / p.dim) * p.channels + u % p.heads * p.dim + i % p.dim] += sums[u * sum + map + i];
}

// Checked arguments and the float32 copies of the small ones.
struct Arguments {
  Problem problem;
  Tensor qkv, pad;
  std::vector<float> bias;
};

void read_arguments(Arguments& a, const Tensor& qkv, const std::optional<Tensor>& pad, const Tensor& bias, int64_t heads,
                    int64_t window, int64_t shift, double scale) {
  check_attention(qkv, pad, bias, heads, window, shift, kMaxWindow);
  const int64_t width = qkv.size(3), n = window * window;
  Problem& p = a.problem;
  a.qkv = torch::stable::contiguous(qkv);
  p.qkv = a.qkv.const_data_ptr();
  p.grad = nullptr;
  p.out = nullptr;
  p.pad = nullptr;
  if (pad) {
    a.pad = torch::stable::contiguous(torch::stable::to(*pad, ScalarType::Float));
    p.pad = static_cast<const float*>(a.pad.const_data_ptr());
  }
  p.map = window_map((int)qkv.size(1), (int)qkv.size(2), (int)window, (int)shift);
  p.batch = (int)qkv.size(0);
  p.heads = (int)heads;
  p.channels = (int)(width / 3);
  p.dim = (int)(p.channels / heads);
  p.tokens = (int)n;
  p.dim_padded = (p.dim + kAlign - 1) / kAlign * kAlign;
  p.tokens_padded = (p.tokens + kAlign - 1) / kAlign * kAlign;
  p.scale = (float)scale;
  const Tensor values = torch::stable::contiguous(torch::stable::to(bias, ScalarType::Float));
  const float* from = static_cast<const float*>(values.const_data_ptr());
  a.bias.assign(heads * n * p.tokens_padded, -INFINITY);
  for (int64_t r = 0; r < heads * n; ++r) std::copy_n(from + r * n, n, a.bias.data() + r * p.tokens_padded);
  p.bias = a.bias.data();
}

Tensor window_attention(const Tensor& qkv, const std::optional<Tensor>& pad, const Tensor& bias, int64_t heads,
                        int64_t window, int64_t shift, double scale) {
  Arguments a;
  read_arguments(a, qkv, pad, bias, heads, window, shift, scale);
  Problem& p = a.problem;
  Tensor out = torch::stable::new_empty(a.qkv, {qkv.size(0), qkv.size(1), qkv.size(2), p.channels});
  if (out.numel() == 0) return out;
  p.out = out.mutable_data_ptr();
  switch (qkv.scalar_type()) {
    case ScalarType::Half: run_forward<torch::headeronly::Half>(p); break;
    case ScalarType::BFloat16: run_forward<torch::headeronly::BFloat16>(p); break;
    default: run_forward<float>(p);
  }
  return out;
}

std::tuple<Tensor, Tensor, Tensor> window_attention_backward(const Tensor& grad, const Tensor& qkv,
                                                             const std::optional<Tensor>& pad, const Tensor& bias,
                                                             int64_t heads, int64_t window, int64_t shift, double scale) {
  Arguments a;
  read_arguments(a, qkv, pad, bias, heads, window, shift, scale);
  Problem& p = a.problem;
  check_attention_grad(grad, qkv);
  Tensor gqkv = torch::stable::new_empty(a.qkv, {qkv.size(0), qkv.size(1), qkv.size(2), qkv.size(3)});
  Tensor gpad = torch::stable::new_zeros(a.qkv, {qkv.size(3)}, ScalarType::Float);
  Tensor gbias = torch::stable::new_zeros(a.qkv, {heads, p.tokens, p.tokens}, ScalarType::Float);
  if (gqkv.numel() == 0) return {gqkv, gpad, gbias};
  const Tensor g = torch::stable::contiguous(grad);
  p.grad = g.const_data_ptr();
  p.out = gqkv.mutable_data_ptr();
  float* to_pad = static_cast<float*>(gpad.mutable_data_ptr());
  float* to_bias = static_cast<float*>(gbias.mutable_data_ptr());
  switch (qkv.scalar_type()) {
    case ScalarType::Half: run_backward<torch::headeronly::Half>(p, to_pad, to_bias); break;
    case ScalarType::BFloat16: run_backward<torch::headeronly::BFloat16>(p, to_pad, to_bias); break;
    default: run_backward<float>(p, to_pad, to_bias);
  }
  return {gqkv, gpad, gbias};
}

}  // namespace
}  // namespace mesa

STABLE_TORCH_LIBRARY_IMPL(mesa_seg, CPU, m) {
  m.impl("window_attention", TORCH_BOX(&mesa::window_attention));
  m.impl("window_attention_backward", TORCH_BOX(&mesa::window_attention_backward));
}
