#pragma once
// Counter-based random bits: a function of (seed, linear index) alone, so that the codes do not depend on
// threads, blocks or device. One 32-bit word serves two neighbouring elements, 16 bits each:
// element i takes the low half of word i/2 when i is even, the high half when it is odd.
#include <stdint.h>
#include "host_device.h"
namespace mesa {

// Bijective mixing of 32 bits (two multiplications, three shifts).
MESA_HD uint32_t mix32(uint32_t x) {
  x ^= x >> 16;
  x *= 0x21f0aaadu;
  x ^= x >> 15;
  x *= 0x735a2d97u;
  x ^= x >> 15;
  return x;
}

// The key of 2^32 consecutive words (2^33 elements): all words w share it while w >> 32 is the same.
struct StreamKey {
  uint32_t a, b;
};
MESA_HD StreamKey stream_key(uint64_t seed, uint64_t word) {
  const uint32_t high = (uint32_t)(word >> 32);
  StreamKey k;
  k.a = mix32((uint32_t)seed ^ mix32(high + 0x9e3779b9u));
  k.b = mix32((uint32_t)(seed >> 32) ^ k.a);
  return k;
}

// Word w (its low 32 bits) of the stream. The second key enters between the multiplications, so that two streams
// are not permutations of each other.
MESA_HD uint32_t random_word(StreamKey k, uint32_t w) {
  uint32_t x = w ^ k.a;
  x ^= x >> 16;
  x *= 0x21f0aaadu;
  x += k.b;
  x ^= x >> 15;
  x *= 0x735a2d97u;
  x ^= x >> 15;
  return x;
}

// The 16 bits of element i.
MESA_HD uint32_t random_u16(uint64_t seed, uint64_t i) {
  const uint64_t w = i >> 1;
  const uint32_t r = random_word(stream_key(seed, w), (uint32_t)w);
  return (i & 1) ? r >> 16 : r & 0xffffu;
}

// [0, 1) in steps of 2^-16, exact in float32.
MESA_HD float unit_from_u16(uint32_t r) { return (float)(int32_t)r * (1.0f / 65536.0f); }

}  // namespace mesa
