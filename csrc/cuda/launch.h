#pragma once
// The boundary between the torch glue (*.cpp) and the kernels (*.cu): no torch and no CUDA header, so that nvcc compiles
// a .cu in seconds. Each family declares its launchers in its own header; all return 0 or a cudaError_t.
#include <stdint.h>

#include "../common/dtype.h"

namespace mesa {

inline int64_t size_of(DType t) { return t == DType::f32 ? 4 : 2; }

// A tensor seen as [outer, groups, inner], strides in elements.
struct View3 {
  int64_t outer, groups, inner;
  int64_t outer_stride, group_stride, inner_stride;
};

// What the codes of a tensor were made with. block_size 0: ranges float32 [groups, 2]; else bfloat16 [blocks, 2].
struct Coding {
  int bits;
  int block_size;
  const void* ranges;
};

#if defined(MESA_EMU)
// What stands for the current stream: the emulator refuses a launch on any other.
inline void* emulated_stream() { return reinterpret_cast<void*>(uintptr_t{64}); }
#endif

// Text of an error that a launcher returned.
const char* error_text(int error);

}  // namespace mesa
