#pragma once
// MESA_CLONES before a plain (non-template) function: the compiler makes it for AVX-512, AVX2 and the baseline, and the
// loader picks one for the processor at hand. Loops in it should be simple and over __restrict pointers; what it
// calls must be inlined into it, so MESA_HD functions and nothing else. Elsewhere than x86-64 with GCC >= 12 (earlier ones
// do not know these names): one portable version.
#if defined(MESA_CLONES)
// given on the command line
#elif defined(__x86_64__) && defined(__GNUC__) && __GNUC__ >= 12 && !defined(__clang__) && defined(__gnu_linux__)
#define MESA_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MESA_CLONES
#endif
