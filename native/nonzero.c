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

/* Whether the mask has as many ones as there is room for; never writes beyond that. */
INLINE int
each_gather(const char *words, Py_ssize_t count, const uint8_t *mask, char *values, Py_ssize_t room, int size,
            Move *move)
{
    Py_ssize_t done = 0;
    for (Py_ssize_t start = 0; start < count; start += RUN) {
        uint64_t bits = mask_word(mask, start, count);
        int ones = __builtin_popcountll(bits);
        const char *from = words + start * size;
        char *to = values + done * size;
        if (ones > room - done) {
            return 0;
        }
        if (ones == RUN) {
            memcpy(to, from, (size_t)(RUN * size));
        }
        else if (ones > FEW && room - done >= RUN && count - start >= RUN) {
            move(from, bits, to, size);
        }
        else {
            for (int k = 0; bits; bits &= bits - 1, k++) {
                put_word(to, k, size, get_word(from, __builtin_ctzll(bits), size));
            }
        }
        done += ones;
    }
    return done == room;
}

/* Whether the mask has as many ones as there are values; never reads beyond them. */
INLINE int
each_scatter(const char *values, Py_ssize_t total, const uint8_t *mask, char *words, Py_ssize_t count, int size,
             Move *move)
{
    Py_ssize_t done = 0;
    for (Py_ssize_t start = 0; start < count; start += RUN) {
        uint64_t bits = mask_word(mask, start, count);
        int ones = __builtin_popcountll(bits);
        const char *from = values + done * size;
        char *to = words + start * size;
        if (ones > total - done) {
            return 0;
        }
        if (ones == RUN) {
            memcpy(to, from, (size_t)(RUN * size));
        }
        else if (ones > FEW && total - done >= RUN && count - start >= RUN) {
            move(from, bits, to, size);
        }
        else {
            memset(to, 0, (size_t)((count - start < RUN ? count - start : RUN) * size));
            for (int k = 0; bits; bits &= bits - 1, k++) {
                put_word(to, __builtin_ctzll(bits), size, get_word(from, k, size));
            }
        }
        done += ones;
    }
    return done == total;
}

EACH_WIDTH static int
gather_plain(const char *words, Py_ssize_t count, const uint8_t *mask, char *values, Py_ssize_t room, int size)
{
    switch (size) {
    case 2: return each_gather(words, count, mask, values, room, 2, gather_run);
    case 4: return each_gather(words, count, mask, values, room, 4, gather_run);
    default: return each_gather(words, count, mask, values, room, 8, gather_run);
    }
}

EACH_WIDTH static int
scatter_plain(const char *values, Py_ssize_t total, const uint8_t *mask, char *words, Py_ssize_t count, int size)
{
    switch (size) {
    case 2: return each_scatter(values, total, mask, words, count, 2, scatter_run);
    case 4: return each_scatter(values, total, mask, words, count, 4, scatter_run);
    default: return each_scatter(values, total, mask, words, count, 8, scatter_run);
    }
}

typedef int Masked(const char *from, Py_ssize_t size, const uint8_t *mask, char *to, Py_ssize_t room, int itemsize);

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
gather_wide(const char *words, Py_ssize_t count, const uint8_t *mask, char *values, Py_ssize_t room, int size)
{
    switch (size) {
    case 2: return each_gather(words, count, mask, values, room, 2, gather_run_wide);
    case 4: return each_gather(words, count, mask, values, room, 4, gather_run_wide);
    default: return each_gather(words, count, mask, values, room, 8, gather_run_wide);
    }
}

WIDE static int
scatter_wide(const char *values, Py_ssize_t total, const uint8_t *mask, char *words, Py_ssize_t count, int size)
{
    switch (size) {
    case 2: return each_scatter(values, total, mask, words, count, 2, scatter_run_wide);
    case 4: return each_scatter(values, total, mask, words, count, 4, scatter_run_wide);
    default: return each_scatter(values, total, mask, words, count, 8, scatter_run_wide);
    }
}

static int
is_wide(void)
{
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

static Masked *
gather_here(void)
{
    return is_wide() ? gather_wide : gather_plain;
}

static Masked *
scatter_here(void)
{
    return is_wide() ? scatter_wide : scatter_plain;
}
#else
#define gather_here() gather_plain
#define scatter_here() scatter_plain
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
    PyBuffer_Release(&words);
    PyBuffer_Release(&mask);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(total);
}

/* Gather words, or scatter values, by one mask: from one array to the other. */
static PyObject *
move_masked(Py_buffer *from, Py_buffer *mask, Py_buffer *to, const Py_buffer *words, const Py_buffer *values,
            Masked *masked)
{
    int fits = 0;
    if (are_masked(words, mask, values)) {
        Py_ssize_t size = words->itemsize;
        Py_BEGIN_ALLOW_THREADS
        fits = masked(from->buf, from->len / size, mask->buf, to->buf, to->len / size, (int)size);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(from);
    PyBuffer_Release(mask);
    PyBuffer_Release(to);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(fits);
}

static PyObject *
gather_masked(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer words, mask, values;
    if (!PyArg_ParseTuple(args, "y*y*w*:gather_masked", &words, &mask, &values)) {
        return NULL;
    }
    return move_masked(&words, &mask, &values, &words, &values, gather_here());
}

static PyObject *
scatter_masked(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer values, mask, words;
    if (!PyArg_ParseTuple(args, "y*y*w*:scatter_masked", &values, &mask, &words)) {
        return NULL;
    }
    return move_masked(&values, &mask, &words, &words, &values, scatter_here());
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
