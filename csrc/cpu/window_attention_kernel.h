// Window attention of one (window, head) at a time. each_instruction_set.h includes this once for each instruction set.
#include "vector.h"

#define MESA_ROWS (MESA_LANES == 16 ? 7 : 6)  // of a register tile, two vectors wide; 49 rows are seven times seven

// c[r][:] = sum over k of a[r * a_row + k * a_step] * b[k][:], for R rows and V vectors; k runs over list if listed.
template <int R, int V, bool kListed>
MESA_INLINE void tile(float* c, int c_row, const float* const* a, int a_step, const float* b, int b_row, const int* list,
                      int steps) {
  Vec sum[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sum[r][v] = Vec{};
  for (int s = 0; s < steps; ++s) {
    const int k = kListed ? list[s] : s;
    Vec row[V];
    for (int v = 0; v < V; ++v) row[v] = load(b + k * b_row + v * MESA_LANES);
    for (int r = 0; r < R; ++r) {
      const Vec x = splat(a[r][k * a_step]);
      for (int v = 0; v < V; ++v) sum[r][v] = MESA_FMA(x, row[v], sum[r][v]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) store(c + r * c_row + v * MESA_LANES, sum[r][v]);
}

template <int R, bool kListed>
MESA_INLINE void tiles(float* c, int c_row, const float* const* a, int a_step, const float* b, int b_row, const int* list,
                       int steps, int vectors) {
  int v = 0;
  for (; v + 2 <= vectors; v += 2)
    tile<R, 2, kListed>(c + v * MESA_LANES, c_row, a, a_step, b + v * MESA_LANES, b_row, list, steps);
  if (v < vectors) tile<R, 1, kListed>(c + v * MESA_LANES, c_row, a, a_step, b + v * MESA_LANES, b_row, list, steps);
}

// c [rows, columns] = A b: A(r, k) = a[row(r) * a_row + k * a_step], row(r) from row_list (r itself if null).
template <bool kListed>
__attribute__((noinline)) MESA_TARGET static void multiply(float* c, int c_row, const float* a, int a_row,
                                                           const int* row_list, int a_step, const float* b, int b_row,
                                                           const int* list, int steps, int rows, int columns) {
  const int vectors = columns / MESA_LANES;
  for (int r = 0; r < rows; r += MESA_ROWS) {
    const float* row[MESA_ROWS] = {};
    const int n = rows - r < MESA_ROWS ? rows - r : MESA_ROWS;
    for (int i = 0; i < n; ++i) row[i] = a + (row_list ? row_list[r + i] : r + i) * a_row;
    float* to = c + r * c_row;
    switch (n) {
      case 1: tiles<1, kListed>(to, c_row, row, a_step, b, b_row, list, steps, vectors); break;
      case 2: tiles<2, kListed>(to, c_row, row, a_step, b, b_row, list, steps, vectors); break;
      case 3: tiles<3, kListed>(to, c_row, row, a_step, b, b_row, list, steps, vectors); break;
      case 4: tiles<4, kListed>(to, c_row, row, a_step, b, b_row, list, steps, vectors); break;
      case 5: tiles<5, kListed>(to, c_row, row, a_step, b, b_row, list, steps, vectors); break;
      case 6: tiles<6, kListed>(to, c_row, row, a_step, b, b_row, list, steps, vectors); break;
      default: tiles<MESA_ROWS, kListed>(to, c_row, row, a_step, b, b_row, list, steps, vectors);
    }
  }
}

// [rows, columns] -> [columns, rows]; both counts padded to multiples of 4 in the buffers.
MESA_TARGET static void transpose(float* to, int to_row, const float* from, int from_row, int rows, int columns) {
  typedef float Vec4Any __attribute__((vector_size(16), aligned(4), may_alias));
  for (int c = 0; c < columns; c += 4)
    for (int r = 0; r < rows; r += 4) {
      const float* p = from + r * from_row + c;
      const Vec4 a0 = *(const Vec4Any*)p, a1 = *(const Vec4Any*)(p + from_row), a2 = *(const Vec4Any*)(p + 2 * from_row),
               a3 = *(const Vec4Any*)(p + 3 * from_row);
      const Vec4 b0 = __builtin_shufflevector(a0, a1, 0, 4, 1, 5), b1 = __builtin_shufflevector(a0, a1, 2, 6, 3, 7);
      const Vec4 b2 = __builtin_shufflevector(a2, a3, 0, 4, 1, 5), b3 = __builtin_shufflevector(a2, a3, 2, 6, 3, 7);
      float* q = to + c * to_row + r;
      *(Vec4Any*)q = __builtin_shufflevector(b0, b2, 0, 1, 4, 5);
      *(Vec4Any*)(q + to_row) = __builtin_shufflevector(b0, b2, 2, 3, 6, 7);
      *(Vec4Any*)(q + 2 * to_row) = __builtin_shufflevector(b1, b3, 0, 1, 4, 5);
      *(Vec4Any*)(q + 3 * to_row) = __builtin_shufflevector(b1, b3, 2, 3, 6, 7);
    }
}

// Rows of `width` floats out of a token map of T; position p comes from token[p], or from fill (zeros if null).
template <class T>
MESA_TARGET static void gather(float* to, int to_row, const T* from, int64_t from_row, const float* fill, const int* token,
                               const int* list, int rows, int width, float scale) {
  for (int r = 0; r < rows; ++r) {
    const int t = token[list ? list[r] : r];
    float* q = to + r * to_row;
    if (t >= 0) {
      const T* p = from + t * from_row;
      for (int i = 0; i < width; ++i) q[i] = static_cast<float>(p[i]) * scale;
    } else {
      for (int i = 0; i < width; ++i) q[i] = fill ? fill[i] * scale : 0.0f;
    }
  }
}

template <class T>
MESA_INLINE void put(T* to, const float* from, int width, float scale) {
  for (int i = 0; i < width; ++i) to[i] = static_cast<T>(from[i] * scale);
}

// One row of logits becomes bias + logits + mask; returns its maximum.
MESA_INLINE float finish_logits(float* logits, const float* bias, const float* regions, float region, int columns) {
  Vec top = splat(-INFINITY);
  for (int j = 0; j < columns; j += MESA_LANES) {
    Vec x = load(logits + j) + load(bias + j);
    if (regions) x += load(regions + j) == region ? Vec{} : splat(kRegionMask);
    store(logits + j, x);
    top = MESA_MAX(x, top);
  }
  return max_of(top);
}

// Padded keys are all the same: the first takes the weight of all.
MESA_INLINE void merge_padded(float* row, const Places& places) {
  float sum = row[places.padded[0]];
  for (int p = 1; p < places.padded_count; ++p) sum += row[places.padded[p]];
  row[places.padded[0]] = sum;
}

template <bool kWrite, class T>
MESA_INLINE void prefetch(const T* p, int width) {
  for (int i = 0; i < width; i += 64 / (int)sizeof(T)) __builtin_prefetch(p + i, kWrite);
}

// Fetches the q, k and v (and gradient) of positions [first, stop) of the next unit.
template <class T>
MESA_INLINE void prefetch_next(const Problem& problem, const Next& next, int first, int stop) {
  if (!next.places) return;
  const int64_t channels = problem.channels, row = next.image * problem.map_tokens();
  const T* qkv = static_cast<const T*>(problem.qkv) + row * 3 * channels + next.head * problem.dim;
  const T* grad = static_cast<const T*>(problem.grad);
  if (grad) grad += row * channels + next.head * problem.dim;
  for (int p = first; p < stop; ++p) {
    const int64_t token = next.places->token[p];
    if (token < 0) continue;
    for (int part = 0; part < 3; ++part) prefetch<false>(qkv + (3 * token + part) * channels, problem.dim);
    if (grad) prefetch<false>(grad + token * channels, problem.dim);
  }
}

template <class T>
MESA_TARGET static void forward_unit(const Problem& problem, const Places& places, int64_t image, int head,
                                     float* scratch, const Next& next) {
  const int n = problem.tokens, np = problem.tokens_padded, d = problem.dim, dp = problem.dim_padded;
  const int queries = places.real_count, keys = queries + (places.padded_count > 0);
  const int64_t row = 3 * (int64_t)problem.channels;
  const T* base = static_cast<const T*>(problem.qkv) + image * problem.map_tokens() * row + head * d;
  const float* pad = problem.pad ? problem.pad + head * d : nullptr;
  Scratch s(scratch);
  float *q = s.take(np * dp), *k = s.take(np * dp), *v = s.take(np * dp), *kt = s.take(dp * np), *p = s.take(n * np);
  float* o = q;  // the queries are spent by then

  gather(q, dp, base, row, nullptr, places.token, places.real, queries, d, problem.scale);
  gather(k, dp, base + problem.channels, row, pad ? pad + problem.channels : nullptr, places.token, nullptr, n, d, 1.0f);
  gather(v, dp, base + 2 * problem.channels, row, pad ? pad + 2 * problem.channels : nullptr, places.token, nullptr, n, d,
         1.0f);
  transpose(kt, np, k, dp, n, d);
  multiply<false>(p, np, q, dp, nullptr, 1, kt, np, nullptr, d, queries, np);
  T* out = static_cast<T*>(problem.out) + image * problem.map_tokens() * problem.channels + head * d;
  const float* bias = problem.bias + (int64_t)head * n * np;
  for (int i = 0; i < queries; ++i) {
    float* x = p + i * np;
    const int at = places.real[i];
    prefetch_next<T>(problem, next, i, i + 1);
    prefetch<true>(out + (int64_t)places.token[at] * problem.channels, d);
    const float top = finish_logits(x, bias + at * np, places.regions, places.region[at], np);
    Vec sum = Vec{};
    for (int j = 0; j < np; j += MESA_LANES) {
      const Vec e = exp_of(load(x + j) - top);
      store(x + j, e);
      sum += e;
    }
    places.inverse[i] = 1.0f / sum_of(sum);
    if (places.padded_count) merge_padded(x, places);
  }
  prefetch_next<T>(problem, next, queries, n);
  if (places.padded_count)
    multiply<true>(o, dp, p, np, nullptr, 1, v, dp, places.keys, keys, queries, dp);
  else
    multiply<false>(o, dp, p, np, nullptr, 1, v, dp, nullptr, keys, queries, dp);
  for (int i = 0; i < queries; ++i)
    put(out + (int64_t)places.token[places.real[i]] * problem.channels, o + i * dp, d, places.inverse[i]);
}

// gbias [N, padded N] and gpad [2, d] (k, v) of this head are added to.
template <class T>
MESA_TARGET static void backward_unit(const Problem& problem, const Places& places, int64_t image, int head,
                                      float* scratch, const Next& next, float* gbias, float* gpad) {
  const int n = problem.tokens, np = problem.tokens_padded, d = problem.dim, dp = problem.dim_padded;
  const int queries = places.real_count, keys = queries + (places.padded_count > 0);
  const int64_t row = 3 * (int64_t)problem.channels;
  const int64_t first = image * problem.map_tokens();
  const T* base = static_cast<const T*>(problem.qkv) + first * row + head * d;
  const T* grad = static_cast<const T*>(problem.grad) + first * problem.channels + head * d;
  const float* pad = problem.pad ? problem.pad + head * d : nullptr;
  Scratch s(scratch);
  float *q = s.take(np * dp), *k = s.take(np * dp), *g = s.take(np * dp), *c = s.take(np * dp), *kt = s.take(dp * np),
        *vt = s.take(dp * np), *p = s.take(n * np), *gp = s.take(n * np);
  float* v = c;  // only its transpose is needed

  gather(q, dp, base, row, nullptr, places.token, places.real, queries, d, problem.scale);
  gather(k, dp, base + problem.channels, row, pad ? pad + problem.channels : nullptr, places.token, nullptr, n, d, 1.0f);
  gather(v, dp, base + 2 * problem.channels, row, pad ? pad + 2 * problem.channels : nullptr, places.token, nullptr, n, d,
         1.0f);
  gather(g, dp, grad, (int64_t)problem.channels, nullptr, places.token, places.real, queries, d, 1.0f);
  transpose(kt, np, k, dp, n, d);
  transpose(vt, np, v, dp, n, d);
  multiply<false>(p, np, q, dp, nullptr, 1, kt, np, nullptr, d, queries, np);
  multiply<false>(gp, np, g, dp, nullptr, 1, vt, np, nullptr, d, queries, np);
  T* gqkv = static_cast<T*>(problem.out) + first * row + head * d;
  const float* bias = problem.bias + (int64_t)head * n * np;
  for (int i = 0; i < queries; ++i) {
    float *x = p + i * np, *gx = gp + i * np;
    const int at = places.real[i];
    prefetch_next<T>(problem, next, i, i + 1);
    for (int part = 0; part < 3; ++part) prefetch<true>(gqkv + places.token[at] * row + part * problem.channels, d);
    const float top = finish_logits(x, bias + at * np, places.regions, places.region[at], np);
    Vec sum = Vec{}, dot = Vec{};
    for (int j = 0; j < np; j += MESA_LANES) {
      const Vec e = exp_of(load(x + j) - top);
      store(x + j, e);
      sum += e;
      dot = MESA_FMA(e, load(gx + j), dot);
    }
    const float inverse = 1.0f / sum_of(sum), mean = sum_of(dot) * inverse;
    float* to = gbias + at * np;
    for (int j = 0; j < np; j += MESA_LANES) {
      const Vec prob = load(x + j) * inverse;
      const Vec glogit = prob * (load(gx + j) - mean);
      store(x + j, prob);
      store(gx + j, glogit);
      store(to + j, load(to + j) + glogit);
    }
    if (places.padded_count) {
      merge_padded(x, places);
      merge_padded(gx, places);
    }
  }
  prefetch_next<T>(problem, next, queries, n);
  if (places.padded_count)
    multiply<true>(c, dp, gp, np, nullptr, 1, k, dp, places.keys, keys, queries, dp);
  else
    multiply<false>(c, dp, gp, np, nullptr, 1, k, dp, nullptr, keys, queries, dp);
  for (int i = 0; i < queries; ++i) put(gqkv + places.token[places.real[i]] * row, c + i * dp, d, problem.scale);
  for (int part = 0; part < 2; ++part) {  // k, then v
    multiply<false>(c, dp, part ? p : gp, 1, places.keys, np, part ? g : q, dp, nullptr, queries, keys, dp);
    T* to = gqkv + (part + 1) * problem.channels;
    for (int j = 0; j < queries; ++j) put(to + places.token[places.real[j]] * row, c + j * dp, d, 1.0f);
    if (keys > queries)
      for (int i = 0; i < d; ++i) gpad[part * d + i] += c[queries * dp + i];
  }
}


#undef MESA_ROWS
#undef MESA_INLINE
