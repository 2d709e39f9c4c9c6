/* Vectors of the compiler's own, and functions compiled once for each width of the processor's. */

#ifndef TENSORSTASH_SIMD_H
#define TENSORSTASH_SIMD_H

#include <stdint.h>

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__)
/* The loader picks the widest that runs; see "Function Multiversioning" in the manual of GCC. */
#define EACH_WIDTH __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define EACH_WIDTH
#endif

/* For what is compiled once for each width with the function that calls it, and once for each constant it is given. */
#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

#endif
