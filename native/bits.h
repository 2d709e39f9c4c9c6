/* Codes of 4 or 2 bits, several to the byte, the first in the lowest bits, as in tensorstash.codecs.bits. */

#ifndef TENSORSTASH_BITS_H
#define TENSORSTASH_BITS_H

#include <stddef.h>
#include <string.h>

#include "simd.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#error "words are read and written with the first code in their lowest byte"
#endif

/* Replace codes of 8 bits by the nearest of fewer. */
EACH_WIDTH static void
coarsen(uint8_t *codes, size_t count, int bits)
{
    unsigned factor = bits == 4 ? 15 : 3, half = bits == 4 ? 135 : 129;
    for (size_t i = 0; i < count; i++) {
        codes[i] = (uint8_t)((uint16_t)(codes[i] * factor + half) >> 8);
    }
}

/* A word of each loop has the codes of a byte, one in each of its own. */

EACH_WIDTH static void
pack_codes(const uint8_t *codes, int bits, uint8_t *bytes, size_t count)
{
    if (bits == 4) {
        for (size_t i = 0; i < count; i++) {
            uint16_t word;
            memcpy(&word, codes + 2 * i, sizeof word);
            bytes[i] = (uint8_t)(word | word >> 4);
        }
    }
    else {
        for (size_t i = 0; i < count; i++) {
            uint32_t word;
            memcpy(&word, codes + 4 * i, sizeof word);
            word |= word >> 6;
            bytes[i] = (uint8_t)((word & 15) | word >> 12);
        }
    }
}

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
