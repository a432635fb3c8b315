#pragma once
// Masks of one bit a value. A thread moves 16 bytes of values an access; fewer where a pointer is not aligned or the
// tensor ends. Every kernel strides over the rest of the tensor, so any size fits any grid.
#include "device.cuh"

namespace mesa {

constexpr int kMaskThreads = 256;

// 4 bools, one in each byte (any byte but 0 is true), as 4 bits.
MESA_HD uint32_t four_bits(uint32_t bytes) {
  bytes |= bytes >> 4;
  bytes |= bytes >> 2;
  bytes |= bytes >> 1;
  return ((bytes & 0x01010101u) * 0x01020408u) >> 24;
}
MESA_HD uint32_t four_bools(uint32_t bits) {
  return (bits & 1u) | (bits & 2u) << 7 | (bits & 4u) << 14 | (bits & 8u) << 21;
}

// 16 bools -> 2 bytes a thread.
template <bool VECTOR>
__global__ void __launch_bounds__(kMaskThreads) pack_mask_kernel(const uint8_t* __restrict__ mask,
                                                                 uint8_t* __restrict__ bits, int64_t n) {
  const int64_t chunks = (n + 15) / 16;
  for (int64_t c = thread_index(); c < chunks; c += thread_count()) {
    const int64_t i = c * 16;
    if (VECTOR && i + 16 <= n) {
      const Pack<uint32_t, 4> m = load_pack<4>(reinterpret_cast<const uint32_t*>(mask + i));
      uint32_t word = 0;
      MESA_UNROLL
      for (int k = 0; k < 4; ++k) word |= four_bits(m.v[k]) << 4 * k;
      *reinterpret_cast<uint16_t*>(bits + 2 * c) = (uint16_t)word;
    } else {
      for (int b = 0; b < 2 && i + 8 * b < n; ++b) {
        uint32_t byte = 0;
        for (int k = 0; k < 8 && i + 8 * b + k < n; ++k) byte |= (uint32_t)(mask[i + 8 * b + k] != 0) << k;
        bits[2 * c + b] = (uint8_t)byte;
      }
    }
  }
}

template <bool VECTOR>
__global__ void __launch_bounds__(kMaskThreads) unpack_mask_kernel(const uint8_t* __restrict__ bits,
                                                                   uint8_t* __restrict__ mask, int64_t n) {
  const int64_t chunks = (n + 15) / 16;
  for (int64_t c = thread_index(); c < chunks; c += thread_count()) {
    const int64_t i = c * 16;
    if (VECTOR && i + 16 <= n) {
      const uint32_t word = *reinterpret_cast<const uint16_t*>(bits + 2 * c);
      Pack<uint32_t, 4> m;
      MESA_UNROLL
      for (int k = 0; k < 4; ++k) m.v[k] = four_bools(word >> 4 * k);
      store_pack<4>(reinterpret_cast<uint32_t*>(mask + i), m);
    } else {
      for (int k = 0; k < 16 && i + k < n; ++k) mask[i + k] = bits[2 * c + (k >> 3)] >> (k & 7) & 1;
    }
  }
}

// V values a thread; with 4 values (float32) two neighbouring lanes make one byte.
template <class T, bool VECTOR>
__global__ void __launch_bounds__(kMaskThreads) relu_mask_kernel(const T* __restrict__ x, T* __restrict__ y,
                                                                 uint8_t* __restrict__ bits, int64_t n) {
  constexpr int V = kVector<T>;
  const int64_t chunks = (n + V - 1) / V;
  const int lane = lane_id();
  // Whole warps stay in the loop together: the shuffle needs every lane.
  for (int64_t first = thread_index() - lane; first < chunks; first += thread_count()) {
    const int64_t c = first + lane, i = c * V;
    Pack<T, V> p;
    uint32_t found = 0;
    if (i < n) {
      const bool whole = VECTOR && i + V <= n;
      if (whole) {
        p = load_pack<V>(x + i);
      } else {
        MESA_UNROLL
        for (int k = 0; k < V; ++k) p.v[k] = i + k < n ? x[i + k] : from_float<T>(0.0f);
      }
      MESA_UNROLL
      for (int k = 0; k < V; ++k) {
        const float v = to_float(p.v[k]);
        found |= (uint32_t)(v > 0.0f) << k;
        if (v <= 0.0f) p.v[k] = from_float<T>(0.0f);  // NaN stays
      }
      if (whole) {
        store_pack<V>(y + i, p);
      } else {
        for (int k = 0; k < V && i + k < n; ++k) y[i + k] = p.v[k];
      }
    }
    if (V == 8) {
      if (i < n) bits[c] = (uint8_t)found;
    } else {
      const uint32_t next = __shfl_down_sync(kFullWarp, found, 1);
      if ((lane & 1) == 0 && i < n) bits[c >> 1] = (uint8_t)(found | next << 4);
    }
  }
}

template <class T, bool VECTOR>
__global__ void __launch_bounds__(kMaskThreads)
    mask_multiply_kernel(const T* __restrict__ grad, const uint8_t* __restrict__ bits, T* __restrict__ out,
                         float scale, int64_t n) {
  constexpr int V = kVector<T>;
  const int64_t chunks = (n + V - 1) / V;
  for (int64_t c = thread_index(); c < chunks; c += thread_count()) {
    const int64_t i = c * V;
    const uint32_t kept = (uint32_t)bits[i >> 3] >> (i & 7);
    if (VECTOR && i + V <= n) {
      Pack<T, V> p = load_pack<V>(grad + i);
      MESA_UNROLL
      for (int k = 0; k < V; ++k) p.v[k] = from_float<T>(kept >> k & 1 ? to_float(p.v[k]) * scale : 0.0f);
      store_pack<V>(out + i, p);
    } else {
      for (int k = 0; k < V && i + k < n; ++k)
        out[i + k] = from_float<T>(kept >> k & 1 ? to_float(grad[i + k]) * scale : 0.0f);
    }
  }
}

}  // namespace mesa
