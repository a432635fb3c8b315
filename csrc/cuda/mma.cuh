#pragma once
// Tensor-core products of 16-bit matrices with float32 sums, and what feeds them: PTX on the device (sm_80 and newer),
// the same exchange between the 32 lanes in the emulator. Everything here is done by all lanes of a warp together, but
// for pack2, exp2_of and the copies.
//
// Fragments, with g = lane / 4 and c = lane % 4 (PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type");
// a register holds two neighbouring values, the first in its low half:
//   A [16, 16]: register i holds A[g + 8 (i % 2)][2 c + 8 (i / 2) + {0, 1}];
//   B [16, 8]:  register i holds B[2 c + 8 i + {0, 1}][g];
//   C [16, 8]:  float i is C[g + 8 (i / 2)][2 c + i % 2].
// So the C of two neighbouring column blocks, packed, are the A of a next product.
#include "device.cuh"

namespace mesa {

#if defined(MESA_EMU)

struct MmaOperands {
  uint32_t a[4], b[2];
};
template <class T>
float half_of_word(uint32_t word, int i) {
  const uint16_t raw = (uint16_t)(word >> 16 * i);
  T v;
  memcpy(&v, &raw, 2);
  return to_float(v);
}
template <class T>
void mma(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const auto lanes = emu::bring(MmaOperands{{a[0], a[1], a[2], a[3]}, {b0, b1}}, emu::op_mma);
  for (int i = 0; i < 4; ++i) {
    const int row = lane_id() / 4 + 8 * (i / 2), column = 2 * (lane_id() % 4) + i % 2;
    for (int k = 0; k < 16; ++k) {
      const int pair = k % 8 / 2;
      sum[i] += half_of_word<T>(lanes[row % 8 * 4 + pair].a[row / 8 + 2 * (k / 8)], k % 2) *
                half_of_word<T>(lanes[column * 4 + pair].b[k / 8], k % 2);
    }
  }
}

// Lane 8 m + r names row r of the 8 x 8 matrix m.
template <bool TRANSPOSED, class T>
void load_matrices(uint32_t (&to)[4], const emu::SharedView<T>& row) {
  emu::check_aligned(row.values, 16);
  const auto rows = emu::bring(row, TRANSPOSED ? emu::op_load_matrix_transposed : emu::op_load_matrix);
  const int g = lane_id() / 4, c = lane_id() % 4;
  for (int m = 0; m < 4; ++m) {
    Pack<T, 2> pair;
    for (int e = 0; e < 2; ++e) pair.v[e] = TRANSPOSED ? rows[8 * m + 2 * c + e][g] : rows[8 * m + g][2 * c + e];
    memcpy(&to[m], &pair, 4);
  }
}

template <class T>
uint32_t pack2(float low, float high) {
  const Pack<T, 2> pair{{from_float<T>(low), from_float<T>(high)}};
  uint32_t word;
  memcpy(&word, &pair, 4);
  return word;
}

inline int lane_again() { return lane_id(); }
inline int warp_again() { return (int)threadIdx.x / 32; }
inline float exp2_of(float x) { return exp2f(x); }

template <class T>
void copy_async(const emu::SharedView<T>& to, const T* from) {
  emu::check_aligned(to.values, 16);
  emu::check_aligned(from, 16);
  emu::copy_later([=] {
    for (int i = 0; i < kVector<T>; ++i) to[i] = from[i];
  });
}
inline void wait_for_copies() { emu::wait_for_copies(); }

template <int N, class T>
Pack<T, N> load_shared(const emu::SharedView<T>& from) {
  Pack<T, N> p;
  emu::check_aligned(from.values, sizeof p);
  for (int i = 0; i < N; ++i) p.v[i] = from[i];
  return p;
}
template <int N, class T>
void store_shared(const emu::SharedView<T>& to, const Pack<T, N>& p) {
  emu::check_aligned(to.values, sizeof p);
  for (int i = 0; i < N; ++i) to[i] = p.v[i];
}

#else

// sum += A B.
template <class T>
__device__ __forceinline__ void mma(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void mma<__half>(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma<__nv_bfloat16>(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8 x 8 matrices out of shared memory, one a register, each as a fragment of A (or, TRANSPOSED, its transpose).
// Lane 8 m + r names row r of matrix m: 16 bytes, aligned.
template <bool TRANSPOSED, class T>
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], const T* row) {
  const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
  if (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
}

// Two values rounded into one register, the first in its low half.
template <class T>
__device__ __forceinline__ uint32_t pack2(float low, float high);
template <>
__device__ __forceinline__ uint32_t pack2<__half>(float low, float high) {
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
template <>
__device__ __forceinline__ uint32_t pack2<__nv_bfloat16>(float low, float high) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

// The lane, and the warp of a one-dimensional block, asked anew: addresses made of them are not kept in registers from
// one use to the next.
__device__ __forceinline__ int lane_again() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}
__device__ __forceinline__ int warp_again() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread >> 5;
}

__device__ __forceinline__ float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 16 bytes from global to shared memory, past the L1 cache; they are there for the thread once it has waited, for
// others once it has met them at a barrier after that.
template <class T>
__device__ __forceinline__ void copy_async(T* to, const T* from) {
  const uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_shared(const T* from) { return load_pack<N>(from); }
template <int N, class T>
__device__ __forceinline__ void store_shared(T* to, const Pack<T, N>& p) { store_pack<N>(to, p); }

#endif

// Two packed values to shared memory, at a multiple of 4 bytes.
template <class T, class S>
__device__ __forceinline__ void store_word(const S& to, uint32_t word) {
  Pack<T, 2> pair;
  memcpy(&pair, &word, 4);
  store_shared<2>(to, pair);
}

}  // namespace mesa
