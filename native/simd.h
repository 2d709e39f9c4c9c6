/* What the compiler has to be, and functions compiled once for each width of the processor's vectors. */

#ifndef TENSORSTASH_SIMD_H
#define TENSORSTASH_SIMD_H

#include <stdint.h> /* with glibc it also says that this is glibc */

#if !defined(__GNUC__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "written for GCC or Clang, and for the least significant byte first"
#endif

#if defined(__x86_64__) && defined(__GLIBC__)
/* The loader picks the widest that runs, which takes the indirect functions of glibc; musl has none. See "Function
 * Multiversioning" in the manual of GCC. */
#define EACH_WIDTH __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define EACH_WIDTH
#endif

/* For what is compiled once for each width with the function that calls it, and once for each constant it is given. */
#define INLINE static inline __attribute__((always_inline))

#endif
