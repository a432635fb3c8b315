#pragma once
// Element types of activations, as kernels that include no torch header see them.
namespace mesa {
enum class DType : int { f32 = 0, f16 = 1, bf16 = 2 };
}  // namespace mesa
