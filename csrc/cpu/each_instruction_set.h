// Includes the file named by MESA_KERNEL once for each instruction set, in the namespaces plain, v3 (AVX2) and v4 (AVX-512),
// with MESA_TARGET (the function attribute), MESA_LANES (floats in a register), MESA_FMA(a, b, c) and MESA_MAX(a, b) (b
// where either is NaN). No include guard. Clones of one function would not do: the compiler lowers vectors that are
// wider than the baseline's registers before it clones.
#if defined(__x86_64__) && defined(__GNUC__)
#define MESA_HAS_X86_LEVELS 1
#include <immintrin.h>
#endif

namespace plain {
#define MESA_TARGET
#define MESA_LANES 4
#define MESA_FMA(a, b, c) ((a) * (b) + (c))
#define MESA_MAX(a, b) ((a) > (b) ? (a) : (b))
#include MESA_KERNEL
#undef MESA_TARGET
#undef MESA_LANES
#undef MESA_FMA
#undef MESA_MAX
}  // namespace plain

#if defined(MESA_HAS_X86_LEVELS)
namespace v3 {
#define MESA_TARGET __attribute__((target("avx2,fma")))
#define MESA_LANES 8
#define MESA_FMA(a, b, c) ((Vec)_mm256_fmadd_ps((a), (b), (c)))
#define MESA_MAX(a, b) ((Vec)_mm256_max_ps((a), (b)))
#include MESA_KERNEL
#undef MESA_TARGET
#undef MESA_LANES
#undef MESA_FMA
#undef MESA_MAX
}  // namespace v3
namespace v4 {
#define MESA_TARGET __attribute__((target("avx2,fma,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")))
#define MESA_LANES 16
#define MESA_FMA(a, b, c) ((Vec)_mm512_fmadd_ps((a), (b), (c)))
// Masked with all lanes: GCC 12 warns of an uninitialised value inside the plain form.
#define MESA_MAX(a, b) ((Vec)_mm512_maskz_max_ps(0xffff, (a), (b)))
#include MESA_KERNEL
#undef MESA_TARGET
#undef MESA_LANES
#undef MESA_FMA
#undef MESA_MAX
}  // namespace v4
#endif

// The namespace to call: 0 plain, 3 v3, 4 v4. MESA_SEG_CPU_LEVEL=0|3|4 lowers it (for tests and measurements).
inline int instruction_set() {
  static const int level = [] {
    int found = 0;
#if defined(MESA_HAS_X86_LEVELS)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found = 3;
    if (found && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
      found = 4;
#endif
    const char* wish = getenv("MESA_SEG_CPU_LEVEL");
    return wish && *wish && atoi(wish) < found ? atoi(wish) : found;
  }();
  return level;
}
#undef MESA_KERNEL
