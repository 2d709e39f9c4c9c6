/* Grids of groups: from elements to codes, and back. Each stage is a plain loop over a batch, which compilers turn into
 * vector instructions. */

#ifndef TENSORSTASH_GRIDS_H
#define TENSORSTASH_GRIDS_H

#include <stdbool.h>

#include "bits.h"
#include "floats.h"
#include "simd.h"

enum {
    BATCH = 2048, /* elements */
    MOST = 128,   /* groups of a batch */
    SPECIALS = 3, /* codes for minus infinity, infinity and NaN in groups that hold one */
};

static const float FINEST = 255, LIMIT = 0x1p126f, LEAST = 0x1p-100f, MAGIC = 0x1.8p23f;
static const float NOISE_UNIT = 65536 * (1 - 0x1p-21f);
static const uint32_t GOLDEN = 0x9E3779B9;

/* Of the groups of a batch, whose elements are rounded to low + code * |scale|. What is true or false has the width of
 * the numbers, as vectors want it. */
typedef struct {
    int32_t lowest[MOST], highest[MOST]; /* ordered extremes, of what is rounded */
    float low[MOST], scale[MOST], inverse[MOST];
    int32_t special[MOST]; /* holds a NaN or an infinity */
    int32_t odd[MOST];     /* holds one, or an element beyond the limit */
    bool any_odd;
} Grids;

INLINE bool
is_finite(float value)
{
    return (bits_of(value) & MAGNITUDE) < INFINITE;
}

/* Integers in the order of the floats, whatever mode the processor computes in. Its own inverse. */
INLINE int32_t
ordered(int32_t bits)
{
    return bits ^ (bits < 0 ? INT32_MAX : 0);
}

INLINE float
limited(float value)
{
    return value > LIMIT ? LIMIT : value < -LIMIT ? -LIMIT : value;
}

/* ---- elements to codes ---- */

INLINE void
extremes(const float *values, size_t groups, size_t size, Grids *grids)
{
    for (size_t g = 0; g < groups; g++, values += size) {
        int32_t low = grids->lowest[g], high = grids->highest[g];
        for (size_t i = 0; i < size; i++) {
            int32_t number = ordered((int32_t)bits_of(values[i]));
            low = number < low ? number : low;
            high = number > high ? number : high;
        }
        grids->lowest[g] = low;
        grids->highest[g] = high;
    }
}

/* The same for odd groups, where elements count that are finite, and held to the limit. */
EACH_WIDTH static void
odd_extremes(const float *values, size_t groups, size_t size, Grids *grids)
{
    for (size_t g = 0; g < groups; g++, values += size) {
        int32_t low = grids->lowest[g], high = grids->highest[g], special = grids->special[g];
        for (size_t i = 0; grids->odd[g] && i < size; i++) {
            int32_t number = ordered((int32_t)bits_of(limited(values[i])));
            bool finite = is_finite(values[i]);
            low = finite && number < low ? number : low;
            high = finite && number > high ? number : high;
            special |= !finite;
        }
        grids->lowest[g] = low;
        grids->highest[g] = high;
        grids->special[g] = special;
    }
}

EACH_WIDTH static void
find_odd(size_t groups, Grids *grids)
{
    int32_t limit = (int32_t)bits_of(LIMIT), least = ordered((int32_t)bits_of(-LIMIT));
    int32_t any = 0;
    for (size_t g = 0; g < groups; g++) {
        int32_t odd = (grids->lowest[g] < least) | (grids->highest[g] > limit);
        grids->special[g] = 0;
        grids->odd[g] = odd;
        grids->lowest[g] = odd ? INT32_MAX : grids->lowest[g];
        grids->highest[g] = odd ? INT32_MIN : grids->highest[g];
        any |= odd;
    }
    grids->any_odd = any;
}

EACH_WIDTH static void
finish(size_t groups, int bits, bool stochastic, Grids *grids)
{
    int codes = (1 << bits) - 1;
    int32_t few = bits == 2;
    float levels = stochastic ? codes : FINEST, worth = FINEST / codes, rest = codes - SPECIALS;
    for (size_t g = 0; g < groups; g++) {
        int32_t special = grids->special[g], empty = grids->lowest[g] > grids->highest[g];
        float low = empty ? 0 : float_of((uint32_t)ordered(grids->lowest[g]));
        float high = empty ? 0 : float_of((uint32_t)ordered(grids->highest[g]));
        float middle = low + (high - low) / 2; /* for a single code */
        low = special & few ? middle : low;
        high = special & few ? middle : high;
        float span = high - low;
        float scale = span / (special ? rest : FINEST) * (special ? 1 : worth);
        float inverse = (special ? rest : levels) / span;
        scale = span >= LEAST ? scale : 0;
        grids->inverse[g] = span >= LEAST ? inverse : 0;
        grids->scale[g] = float_of(bits_of(scale) | (special ? SIGN : 0));
        grids->low[g] = low + 0.0f; /* never -0 */
    }
}

/* What is rounded in place of the elements, where groups are odd. */
static void
hold(const float *values, size_t groups, size_t size, const Grids *grids, float *held)
{
    for (size_t g = 0; g < groups; g++) {
        for (size_t i = g * size; i < (g + 1) * size; i++) {
            held[i] = is_finite(values[i]) ? limited(values[i]) : grids->low[g];
        }
    }
}

INLINE void
nearest(const float *values, size_t groups, size_t size, const Grids *grids, uint8_t *codes)
{
    for (size_t g = 0; g < groups; g++, values += size, codes += size) {
        float low = grids->low[g], inverse = grids->inverse[g];
        for (size_t i = 0; i < size; i++) {
            codes[i] = (uint8_t)bits_of((values[i] - low) * inverse + MAGIC);
        }
    }
}

INLINE uint32_t
mixed(uint32_t word)
{
    word = (word ^ word >> 16) * 0x7FEB352Du;
    word = (word ^ word >> 15) * 0x846CA68Bu;
    return word ^ word >> 16;
}

/* Elements 2k and 2k + 1 of the tensor have the lower and the upper half of one word. */
INLINE void
stochastic(const float *values, size_t groups, size_t size, const Grids *grids, uint32_t seed, size_t at, uint8_t *codes)
{
    uint32_t keys[MOST];
    uint16_t noise[BATCH + 2];
    for (size_t g = 0; g < groups; g++) {
        keys[g] = mixed(mixed(bits_of(grids->scale[g]) ^ seed) + bits_of(grids->low[g]));
    }
    for (size_t g = 0; g < groups; g++, values += size, codes += size, at += size) {
        float low = grids->low[g], factor = grids->inverse[g] * NOISE_UNIT;
        uint32_t place = (uint32_t)(at / 2) * GOLDEN + keys[g];
        size_t odd = at % 2;
        for (size_t i = 0; i < (odd + size + 1) / 2; i++, place += GOLDEN) {
            uint32_t word = mixed(place);
            memcpy(noise + 2 * i, &word, sizeof word);
        }
        for (size_t i = 0; i < size; i++) {
            codes[i] = (uint8_t)(((int32_t)((values[i] - low) * factor) + noise[i + odd]) >> 16);
        }
    }
}

/* Codes of groups that give some up, which are not of 8 bits, as coarsening takes them. */
static void
spread_specials(size_t groups, size_t size, const Grids *grids, int bits, uint8_t *codes)
{
    int worth = 255 / ((1 << bits) - 1);
    for (size_t g = 0; g < groups; g++) {
        for (size_t i = g * size; grids->special[g] && i < (g + 1) * size; i++) {
            codes[i] = (uint8_t)(codes[i] * worth);
        }
    }
}

static void
mark_specials(const float *values, size_t groups, size_t size, const Grids *grids, int bits, uint8_t *codes)
{
    int first = (1 << bits) - SPECIALS;
    for (size_t g = 0; g < groups; g++) {
        for (size_t i = g * size; grids->special[g] && i < (g + 1) * size; i++) {
            if (!is_finite(values[i])) {
                codes[i] = (uint8_t)(first + (values[i] > 0) + 2 * (values[i] != values[i]));
            }
        }
    }
}

/* ---- codes to elements ---- */

INLINE void
interpolate(const uint8_t *codes, size_t groups, size_t size, const Grids *grids, float *values)
{
    for (size_t g = 0; g < groups; g++, values += size, codes += size) {
        float low = grids->low[g], scale = float_of(bits_of(grids->scale[g]) & MAGNITUDE);
        for (size_t i = 0; i < size; i++) {
            values[i] = (float)codes[i] * scale + low;
        }
    }
}

static void
restore_specials(const uint8_t *codes, size_t groups, size_t size, const Grids *grids, int bits, float *values)
{
    const uint32_t specials[] = {SIGN | INFINITE, INFINITE, 0x7FC00000};
    int first = (1 << bits) - SPECIALS;
    for (size_t g = 0; g < groups; g++) {
        bool special = bits_of(grids->scale[g]) & SIGN;
        for (size_t i = g * size; special && i < (g + 1) * size; i++) {
            if (codes[i] >= first) {
                values[i] = float_of(specials[codes[i] - first]);
            }
        }
    }
}

#endif
