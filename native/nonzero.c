/* What is not zero, apart from where it is, as tensorstash.kernels.masks defines it. */

#include "tables.h"
#include "words.h"

/* Elements at a time: those whose bits make one word of the mask; and how many of them are taken one by one. */
enum { RUN = 64, FEW = 16 };

INLINE Py_ssize_t
each_mask(const char *words, Py_ssize_t count, int size, uint8_t *mask)
{
    Py_ssize_t total = 0, start = 0;
    uint8_t there[RUN];
    for (; start + RUN <= count; start += RUN) {
        uint8_t sum = 0;
        for (int i = 0; i < RUN; i++) {
            there[i] = get_word(words + start * size, i, size) != 0;
            sum += there[i];
        }
        pack_run(there, RUN, mask + start / 8);
        total += sum;
    }
    for (Py_ssize_t i = start; i < count; i++) {
        there[i - start] = get_word(words, i, size) != 0;
        total += there[i - start];
    }
    pack_run(there, count - start, mask + start / 8);
    return total;
}

EACH_WIDTH static Py_ssize_t
mask_words(const char *words, Py_ssize_t count, int size, uint8_t *mask)
{
    switch (size) {
    case 2: return each_mask(words, count, 2, mask);
    case 4: return each_mask(words, count, 4, mask);
    default: return each_mask(words, count, 8, mask);
    }
}

/* The bits of up to 64 elements from `start` on, those beyond `count` as 0. */
INLINE uint64_t
mask_word(const uint8_t *mask, Py_ssize_t start, Py_ssize_t count)
{
    uint64_t word = 0;
    Py_ssize_t left = count - start;
    if (left >= RUN) {
        memcpy(&word, mask + start / 8, 8);
        return word;
    }
    memcpy(&word, mask + start / 8, (size_t)(left + 7) / 8);
    return word & (((uint64_t)1 << left) - 1);
}

/* Move the elements of a run whose bit is one between the run and a run of values. What lies between the last one and
 * the end of the run of values may be read and, while they are gathered, overwritten: by the values that follow. */
typedef void Move(const char *from, uint64_t bits, char *to, int size);

INLINE void
gather_run(const char *words, uint64_t bits, char *values, int size)
{
    for (int i = 0; i < RUN; i++) {
        put_word(values, 0, size, get_word(words, i, size));
        values += (bits >> i & 1) * (unsigned)size;
    }
}

INLINE void
scatter_run(const char *values, uint64_t bits, char *words, int size)
{
    for (int i = 0; i < RUN; i++) {
        uint64_t there = bits >> i & 1;
        put_word(words, i, size, get_word(values, 0, size) & -there);
        values += there * (unsigned)size;
    }
}

/* Move words to the values that their mask picks, or values to such words, all others zero; whether the mask has as many
 * ones as there are values, or room for them. Never reads or writes beyond that. */
INLINE int
each_move(const char *from, char *to, Py_ssize_t count, const uint8_t *mask, Py_ssize_t total, int size, int gathers,
          Move *move)
{
    Py_ssize_t done = 0;
    for (Py_ssize_t start = 0; start < count; start += RUN) {
        uint64_t bits = mask_word(mask, start, count);
        int ones = __builtin_popcountll(bits);
        const char *source = from + (gathers ? start : done) * size;
        char *target = to + (gathers ? done : start) * size;
        if (ones > total - done) {
            return 0;
        }
        if (ones == RUN) {
            memcpy(target, source, (size_t)(RUN * size));
        }
        else if (ones > FEW && total - done >= RUN && count - start >= RUN) {
            move(source, bits, target, size);
        }
        else {
            if (!gathers) {
                memset(target, 0, (size_t)((count - start < RUN ? count - start : RUN) * size));
            }
            for (int k = 0; bits; bits &= bits - 1, k++) {
                int place = __builtin_ctzll(bits);
                put_word(target, gathers ? k : place, size, get_word(source, gathers ? place : k, size));
            }
        }
        done += ones;
    }
    return done == total;
}

/* By whether words are gathered. */
typedef int Masked(const char *from, char *to, Py_ssize_t count, const uint8_t *mask, Py_ssize_t total, int size,
                   int gathers);

EACH_WIDTH static int
move_plain(const char *from, char *to, Py_ssize_t count, const uint8_t *mask, Py_ssize_t total, int size, int gathers)
{
    switch (gathers ? size : -size) {
    case 2: return each_move(from, to, count, mask, total, 2, 1, gather_run);
    case 4: return each_move(from, to, count, mask, total, 4, 1, gather_run);
    case 8: return each_move(from, to, count, mask, total, 8, 1, gather_run);
    case -2: return each_move(from, to, count, mask, total, 2, 0, scatter_run);
    case -4: return each_move(from, to, count, mask, total, 4, 0, scatter_run);
    default: return each_move(from, to, count, mask, total, 8, 0, scatter_run);
    }
}

#if defined(__x86_64__)
/* Neither vectors of the compiler's own nor loops that it vectorizes become the instructions made for this. */
#include <immintrin.h>

#define WIDE __attribute__((target("avx512f,avx512bw,avx512vl,popcnt,bmi")))

/* Sixteen elements of 2 or 4 bytes, as 4 bytes each, or eight of 8. */
WIDE INLINE __m512i
get_lanes(const char *words, int size)
{
    return size == 2 ? _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)words)) : _mm512_loadu_si512(words);
}

WIDE INLINE void
put_lanes(char *words, int size, __m512i lanes)
{
    if (size == 2) {
        _mm256_storeu_si256((__m256i *)words, _mm512_cvtepi32_epi16(lanes));
    }
    else {
        _mm512_storeu_si512(words, lanes);
    }
}

WIDE INLINE void
gather_run_wide(const char *words, uint64_t bits, char *values, int size)
{
    const int lanes = size == 8 ? 8 : 16;
    for (int i = 0; i < RUN; i += lanes) {
        uint64_t some = bits >> i & (((uint64_t)1 << lanes) - 1);
        __m512i found = get_lanes(words + i * size, size);
        put_lanes(values, size,
                  size == 8 ? _mm512_maskz_compress_epi64((__mmask8)some, found)
                            : _mm512_maskz_compress_epi32((__mmask16)some, found));
        values += __builtin_popcountll(some) * size;
    }
}

WIDE INLINE void
scatter_run_wide(const char *values, uint64_t bits, char *words, int size)
{
    const int lanes = size == 8 ? 8 : 16;
    for (int i = 0; i < RUN; i += lanes) {
        uint64_t some = bits >> i & (((uint64_t)1 << lanes) - 1);
        __m512i found = get_lanes(values, size);
        put_lanes(words + i * size, size,
                  size == 8 ? _mm512_maskz_expand_epi64((__mmask8)some, found)
                            : _mm512_maskz_expand_epi32((__mmask16)some, found));
        values += __builtin_popcountll(some) * size;
    }
}

WIDE static int
move_wide(const char *from, char *to, Py_ssize_t count, const uint8_t *mask, Py_ssize_t total, int size, int gathers)
{
    switch (gathers ? size : -size) {
    case 2: return each_move(from, to, count, mask, total, 2, 1, gather_run_wide);
    case 4: return each_move(from, to, count, mask, total, 4, 1, gather_run_wide);
    case 8: return each_move(from, to, count, mask, total, 8, 1, gather_run_wide);
    case -2: return each_move(from, to, count, mask, total, 2, 0, scatter_run_wide);
    case -4: return each_move(from, to, count, mask, total, 4, 0, scatter_run_wide);
    default: return each_move(from, to, count, mask, total, 8, 0, scatter_run_wide);
    }
}

static Masked *
move_here(void)
{
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") ? move_wide : move_plain;
}
#else
#define move_here() move_plain
#endif

/* Whether there is one bit for each word, and whatever values there are consist of such words; else an error is set. */
static int
are_masked(const Py_buffer *words, const Py_buffer *mask, const Py_buffer *values)
{
    Py_ssize_t size = words->itemsize;
    if (!is_word(size) || size == 1 || words->len % size || (values != NULL && values->itemsize != size)
        || (values != NULL && values->len % size) || mask->len != packed_bytes(words->len / size)) {
        PyErr_SetString(PyExc_ValueError, "expected words of 2, 4 or 8 bytes, and one bit for each");
        return 0;
    }
    return 1;
}

static PyObject *
mask_nonzero(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer words, mask;
    Py_ssize_t total = 0;
    if (!PyArg_ParseTuple(args, "y*w*:mask_nonzero", &words, &mask)) {
        return NULL;
    }
    if (are_masked(&words, &mask, NULL)) {
        Py_BEGIN_ALLOW_THREADS
        total = mask_words(words.buf, words.len / words.itemsize, (int)words.itemsize, mask.buf);
        Py_END_ALLOW_THREADS
    }
    return released(&words, &mask, NULL) ? PyLong_FromSsize_t(total) : NULL;
}

/* Gather words, or scatter values, by one mask: from one array to the other. */
static PyObject *
move_masked(PyObject *args, int gathers)
{
    Py_buffer from, mask, to;
    int fits = 0;
    if (!PyArg_ParseTuple(args, "y*y*w*", &from, &mask, &to)) {
        return NULL;
    }
    const Py_buffer *const words = gathers ? &from : &to, *const values = gathers ? &to : &from;
    if (are_masked(words, &mask, values)) {
        Py_ssize_t size = words->itemsize;
        Py_BEGIN_ALLOW_THREADS
        fits = move_here()(from.buf, to.buf, words->len / size, mask.buf, values->len / size, (int)size, gathers);
        Py_END_ALLOW_THREADS
    }
    return released(&from, &mask, &to) ? PyBool_FromLong(fits) : NULL;
}

static PyObject *
gather_masked(PyObject *Py_UNUSED(module), PyObject *args)
{
    return move_masked(args, 1);
}

static PyObject *
scatter_masked(PyObject *Py_UNUSED(module), PyObject *args)
{
    return move_masked(args, 0);
}

PyMethodDef nonzero_functions[] = {
    {"mask_nonzero", mask_nonzero, METH_VARARGS,
     "mask_nonzero(words, mask)\n\nFill a bit for each word that is not zero, and return how many are."},
    {"gather_masked", gather_masked, METH_VARARGS,
     "gather_masked(words, mask, values)\n\nFill values with those of the words whose bit is one."},
    {"scatter_masked", scatter_masked, METH_VARARGS,
     "scatter_masked(values, mask, words)\n\nFill words with the values where the bit is one, else with zero."},
    {NULL, NULL, 0, NULL},
};
