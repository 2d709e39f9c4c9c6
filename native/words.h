/* Unsigned integers at any address, of a width that is a constant where a function is called; and bits of bytes. */

#ifndef TENSORSTASH_WORDS_H
#define TENSORSTASH_WORDS_H

#include <string.h>

#include "simd.h"

typedef uint8_t word1;
typedef uint16_t __attribute__((aligned(1), may_alias)) word2;
typedef uint32_t __attribute__((aligned(1), may_alias)) word4;
typedef uint64_t __attribute__((aligned(1), may_alias)) word8;

/* Whether arrays of such elements can be read and written here. */
INLINE int
is_word(Py_ssize_t size)
{
    return size == 1 || size == 2 || size == 4 || size == 8;
}

INLINE uint64_t
get_word(const void *words, Py_ssize_t index, int size)
{
    switch (size) {
    case 1: return ((const word1 *)words)[index];
    case 2: return ((const word2 *)words)[index];
    case 4: return ((const word4 *)words)[index];
    default: return ((const word8 *)words)[index];
    }
}

INLINE void
put_word(void *words, Py_ssize_t index, int size, uint64_t value)
{
    switch (size) {
    case 1: ((word1 *)words)[index] = (word1)value; break;
    case 2: ((word2 *)words)[index] = (word2)value; break;
    case 4: ((word4 *)words)[index] = (word4)value; break;
    default: ((word8 *)words)[index] = value; break;
    }
}

/* One bit of each of eight bytes that are 0 or 1, the first in the lowest. */
INLINE uint8_t
pack_byte(const uint8_t *flags)
{
    uint64_t word;
    memcpy(&word, flags, 8);
    return (uint8_t)(word * 0x0102040810204080u >> 56);
}

/* The inverse of pack_byte. */
INLINE void
unpack_byte(uint8_t bits, uint8_t *flags)
{
    uint64_t word = bits * 0x0101010101010101u & 0x8040201008040201u;
    word = (word + 0x7F7F7F7F7F7F7F7Fu) >> 7 & 0x0101010101010101u;
    memcpy(flags, &word, 8);
}

/* The bytes that hold one bit for each of so many elements. */
INLINE Py_ssize_t
packed_bytes(Py_ssize_t count)
{
    return count / 8 + (count % 8 != 0);
}

/* Flags beyond the last whole byte count as 0. */
INLINE void
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

INLINE void
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
