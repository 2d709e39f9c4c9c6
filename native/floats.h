/* Floats as bits, and those of 16 bits as tensorstash.kernels.floats converts them. */

#ifndef TENSORSTASH_FLOATS_H
#define TENSORSTASH_FLOATS_H

#include <fenv.h>
#include <float.h>
#include <stddef.h>
#include <string.h>

#include "simd.h"

#if FLT_EVAL_METHOD != 0
#error "float is not computed in float here: results would not be those of NumPy"
#endif

/* Threads may differ in how they round and whether they flush subnormals, results must not. */
INLINE int
default_mode(fenv_t *before)
{
    return fegetenv(before) == 0 && fesetenv(FE_DFL_ENV) == 0;
}

enum { SIGN_16 = 0x8000, INFINITY_FLOAT16 = 0x7C00, NAN_FLOAT16 = 0x7E00, NAN_BFLOAT16 = 0x7FC0 };

static const uint32_t SIGN = 0x80000000, MAGNITUDE = 0x7FFFFFFF, INFINITE = 0x7F800000;

INLINE uint32_t
bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

INLINE float
float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The bits without the lowest, to nearest even. */
INLINE uint32_t
rounded(uint32_t bits, int drop)
{
    return (bits + ((bits >> drop) & 1) + ((1u << (drop - 1)) - 1)) >> drop;
}

EACH_WIDTH static void
widen_bfloat16(const uint16_t *source, float *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        values[i] = float_of((uint32_t)source[i] << 16);
    }
}

EACH_WIDTH static void
narrow_bfloat16(const float *values, uint16_t *target, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = bits_of(values[i]);
        uint32_t nan = (bits >> 16 & SIGN_16) | NAN_BFLOAT16;
        target[i] = (uint16_t)((bits & MAGNITUDE) > INFINITE ? nan : rounded(bits, 16));
    }
}

EACH_WIDTH static void
widen_float16(const uint16_t *source, float *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t number = (uint32_t)(source[i] & SIGN_16) << 16 | (uint32_t)(source[i] & 0x7FFF) << 13;
        int is_finite = (source[i] & 0x7FFF) < INFINITY_FLOAT16;
        /* Rebases the exponent, of subnormals too, without rounding. */
        float value = float_of(number) * 0x1p112f;
        values[i] = float_of(is_finite ? bits_of(value) : number | INFINITE);
    }
}

EACH_WIDTH static void
narrow_float16(const float *values, uint16_t *target, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = bits_of(values[i]), magnitude = bits & MAGNITUDE;
        int32_t normal = (int32_t)rounded(magnitude, 13) - (112 << 10);
        /* The smallest subnormal is the last place of the sum. */
        int32_t subnormal = (int32_t)bits_of(float_of(magnitude) + 0.5f) - (int32_t)bits_of(0.5f);
        subnormal = subnormal < 1 << 10 ? subnormal : 1 << 10;
        int32_t number = normal > subnormal ? normal : subnormal;
        number = number < INFINITY_FLOAT16 ? number : INFINITY_FLOAT16;
        number = magnitude > INFINITE ? NAN_FLOAT16 : number;
        target[i] = (uint16_t)((bits >> 16 & SIGN_16) | (uint32_t)number);
    }
}

typedef enum { FLOAT32, FLOAT16, BFLOAT16, OTHER } Kind;

static Kind
kind_of(const char *dtype)
{
    return strcmp(dtype, "float32") == 0    ? FLOAT32
           : strcmp(dtype, "float16") == 0  ? FLOAT16
           : strcmp(dtype, "bfloat16") == 0 ? BFLOAT16
                                            : OTHER;
}

/* From one of the kinds of 16 bits, and to it. */
static void
widen(Kind kind, const uint16_t *source, float *values, size_t count)
{
    if (kind == FLOAT16) {
        widen_float16(source, values, count);
    }
    else {
        widen_bfloat16(source, values, count);
    }
}

static void
narrow(Kind kind, const float *values, uint16_t *target, size_t count)
{
    if (kind == FLOAT16) {
        narrow_float16(values, target, count);
    }
    else {
        narrow_bfloat16(values, target, count);
    }
}

#endif
