/* Codes of 4 or 2 bits, several to the byte, the first in the lowest bits, as in tensorstash.kernels.quantize. */

#ifndef TENSORSTASH_BITS_H
#define TENSORSTASH_BITS_H

#include <stddef.h>
#include <string.h>

#include "simd.h"

/* Words of 16 bits hold two codes, or what is made of them: there is no faster way from bytes to half as many. */
INLINE uint16_t
word_at(const uint8_t *bytes, size_t index)
{
    uint16_t word;
    memcpy(&word, bytes + 2 * index, sizeof word);
    return word;
}

/* Replace codes of 8 bits by the nearest of fewer. */
EACH_WIDTH static void
coarsen(uint8_t *codes, size_t count, int bits)
{
    uint16_t factor = bits == 4 ? 15 : 3, half = bits == 4 ? 135 : 129;
    for (size_t i = 0; i < count / 2; i++) {
        uint16_t word = word_at(codes, i);
        uint16_t first = (uint16_t)((word & 255) * factor + half), second = (uint16_t)((word >> 8) * factor + half);
        word = (uint16_t)(first >> 8 | (second & 0xFF00));
        memcpy(codes + 2 * i, &word, sizeof word);
    }
    if (count % 2) {
        codes[count - 1] = (uint8_t)((codes[count - 1] * factor + half) >> 8);
    }
}

/* Put every two codes of some bits into one byte. */
INLINE void
pack_pairs(const uint8_t *restrict codes, int bits, uint8_t *restrict bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint16_t word = word_at(codes, i);
        bytes[i] = (uint8_t)(word | word >> (8 - bits));
    }
}

EACH_WIDTH static void
pack_codes(const uint8_t *codes, int bits, uint8_t *bytes, size_t count)
{
    uint8_t pairs[512];
    if (bits == 4) {
        pack_pairs(codes, 4, bytes, count);
        return;
    }
    for (size_t done = 0, some; done < count; done += some) {
        some = count - done < sizeof pairs / 2 ? count - done : sizeof pairs / 2;
        pack_pairs(codes + 4 * done, 2, pairs, 2 * some);
        pack_pairs(pairs, 4, bytes + done, some);
    }
}

/* A word of each loop has the codes of a byte, one in each of its own. */

EACH_WIDTH static void
unpack_codes(const uint8_t *bytes, int bits, uint8_t *codes, size_t count)
{
    if (bits == 4) {
        for (size_t i = 0; i < count; i++) {
            uint16_t word = (uint16_t)((bytes[i] | bytes[i] << 4) & 0x0F0F);
            memcpy(codes + 2 * i, &word, sizeof word);
        }
    }
    else {
        for (size_t i = 0; i < count; i++) {
            uint32_t word = bytes[i];
            word = (word | word << 12) & 0x000F000F;
            word = (word | word << 6) & 0x03030303;
            memcpy(codes + 4 * i, &word, sizeof word);
        }
    }
}

#endif
