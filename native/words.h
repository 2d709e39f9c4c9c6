/* Unsigned integers at any address, of a width that is known where a function is called. */

#ifndef TENSORSTASH_WORDS_H
#define TENSORSTASH_WORDS_H

#include <stdint.h>
#include <string.h>

#if !defined(__GNUC__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "written for GCC or Clang, and for the least significant byte first"
#endif

typedef uint8_t word1;
typedef uint16_t __attribute__((aligned(1), may_alias)) word2;
typedef uint32_t __attribute__((aligned(1), may_alias)) word4;
typedef uint64_t __attribute__((aligned(1), may_alias)) word8;

#define INLINED static inline __attribute__((always_inline))

/* One bit of each of eight bytes that are 0 or 1, the first in the lowest. */
INLINED uint8_t
pack_byte(const uint8_t *flags)
{
    uint64_t word;
    memcpy(&word, flags, 8);
    return (uint8_t)(word * 0x0102040810204080u >> 56);
}

/* The inverse of pack_byte. */
INLINED void
unpack_byte(uint8_t bits, uint8_t *flags)
{
    uint64_t word = bits * 0x0101010101010101u & 0x8040201008040201u;
    word = (word + 0x7F7F7F7F7F7F7F7Fu) >> 7 & 0x0101010101010101u;
    memcpy(flags, &word, 8);
}

/* Flags beyond the last whole byte count as 0. */
INLINED void
pack_run(const uint8_t *flags, Py_ssize_t count, uint8_t *packed)
{
    for (Py_ssize_t i = 0; i < count / 8; i++) {
        packed[i] = pack_byte(flags + 8 * i);
    }
    if (count % 8) {
        uint8_t last[8] = {0};
        memcpy(last, flags + (count & -8), (size_t)(count % 8));
        packed[count / 8] = pack_byte(last);
    }
}

INLINED void
unpack_run(const uint8_t *packed, Py_ssize_t count, uint8_t *flags)
{
    for (Py_ssize_t i = 0; i < count / 8; i++) {
        unpack_byte(packed[i], flags + 8 * i);
    }
    if (count % 8) {
        uint8_t last[8];
        unpack_byte(packed[count / 8], last);
        memcpy(flags + (count & -8), last, (size_t)(count % 8));
    }
}

#endif
