#pragma once
// Aligned, uninitialised float buffers for kernels' scratch memory.
#include <stdint.h>
#include <stdlib.h>
#include <memory>
#include <new>
namespace mesa {

struct FreeFloats {
  void operator()(float* p) const { free(p); }
};
using Floats = std::unique_ptr<float, FreeFloats>;
inline Floats make_floats(int64_t n) {
  Floats p(static_cast<float*>(aligned_alloc(64, (n * sizeof(float) + 64) / 64 * 64)));
  if (!p) throw std::bad_alloc();
  return p;
}

}  // namespace mesa
