/* What is not zero, apart from where it is, as tensorstash.codecs.sparse defines it. */

#include "simd.h"
#include "tables.h"
#include "words.h"

/* Elements at a time: those whose bits make one word of the mask; and how many of them are taken one by one. */
enum { RUN = 64, FEW = 16 };

/* The bits of up to 64 elements from `start` on, those beyond `count` as 0. */
INLINED uint64_t
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

#define MASK_OF(N) \
    EACH_WIDTH static Py_ssize_t mask_##N(const word##N *words, Py_ssize_t count, uint8_t *mask) \
    { \
        Py_ssize_t total = 0; \
        for (Py_ssize_t start = 0; start < count; start += RUN) { \
            Py_ssize_t here = count - start < RUN ? count - start : RUN; \
            uint8_t there[RUN], sum = 0; \
            if (here == RUN) { \
                for (Py_ssize_t i = 0; i < RUN; i++) { \
                    there[i] = words[start + i] != 0; \
                    sum += there[i]; \
                } \
                pack_run(there, RUN, mask + start / 8); \
            } \
            else { \
                for (Py_ssize_t i = 0; i < here; i++) { \
                    there[i] = words[start + i] != 0; \
                    sum += there[i]; \
                } \
                pack_run(there, here, mask + start / 8); \
            } \
            total += sum; \
        } \
        return total; \
    }

MASK_OF(2)
MASK_OF(4)
MASK_OF(8)

/* Runs of elements of which some are there. What lies between the last one and the end of a run of values may be read
 * and, while they are gathered, overwritten: by the values that follow. */
#define PLAIN_RUNS_OF(N) \
    INLINED void gather_run_plain_##N(const word##N *words, uint64_t bits, word##N *values) \
    { \
        for (int i = 0; i < RUN; i++) { \
            *values = words[i]; \
            values += bits >> i & 1; \
        } \
    } \
\
    INLINED void scatter_run_plain_##N(const word##N *values, uint64_t bits, word##N *words) \
    { \
        for (int i = 0; i < RUN; i++) { \
            word##N there = bits >> i & 1; \
            words[i] = (word##N)(*values & -there); \
            values += there; \
        } \
    }

PLAIN_RUNS_OF(2)
PLAIN_RUNS_OF(4)
PLAIN_RUNS_OF(8)

#define RUNS_OF(N, KIND, TARGET) \
    /* Whether the mask has as many ones as there is room for; never writes beyond that. */ \
    TARGET static int gather_##KIND##_##N( \
        const word##N *words, Py_ssize_t count, const uint8_t *mask, word##N *values, Py_ssize_t room) \
    { \
        Py_ssize_t done = 0; \
        for (Py_ssize_t start = 0; start < count; start += RUN) { \
            uint64_t bits = mask_word(mask, start, count); \
            int ones = __builtin_popcountll(bits); \
            if (ones > room - done) { \
                return 0; \
            } \
            if (ones == RUN) { \
                memcpy(values + done, words + start, RUN * sizeof *words); \
            } \
            else if (ones > FEW && room - done >= RUN && count - start >= RUN) { \
                gather_run_##KIND##_##N(words + start, bits, values + done); \
            } \
            else { \
                for (word##N *place = values + done; bits; bits &= bits - 1) { \
                    *place++ = words[start + __builtin_ctzll(bits)]; \
                } \
            } \
            done += ones; \
        } \
        return done == room; \
    } \
\
    /* Whether the mask has as many ones as there are values; never reads beyond them. */ \
    TARGET static int scatter_##KIND##_##N( \
        const word##N *values, Py_ssize_t size, const uint8_t *mask, word##N *words, Py_ssize_t count) \
    { \
        Py_ssize_t done = 0; \
        for (Py_ssize_t start = 0; start < count; start += RUN) { \
            uint64_t bits = mask_word(mask, start, count); \
            int ones = __builtin_popcountll(bits); \
            if (ones > size - done) { \
                return 0; \
            } \
            if (ones == RUN) { \
                memcpy(words + start, values + done, RUN * sizeof *words); \
            } \
            else if (ones > FEW && size - done >= RUN && count - start >= RUN) { \
                scatter_run_##KIND##_##N(values + done, bits, words + start); \
            } \
            else { \
                Py_ssize_t here = count - start < RUN ? count - start : RUN; \
                memset(words + start, 0, (size_t)here * sizeof *words); \
                for (const word##N *place = values + done; bits; bits &= bits - 1) { \
                    words[start + __builtin_ctzll(bits)] = *place++; \
                } \
            } \
            done += ones; \
        } \
        return done == size; \
    }

RUNS_OF(2, plain, EACH_WIDTH)
RUNS_OF(4, plain, EACH_WIDTH)
RUNS_OF(8, plain, EACH_WIDTH)

#if defined(__x86_64__)
/* Neither vectors of the compiler's own nor loops that it vectorizes become the instructions made for this. */
#include <immintrin.h>

#define WIDE __attribute__((target("avx512f,avx512bw,avx512vl,popcnt,bmi")))
#define WIDE_RUNS_OF(N, LANES, LOAD, STORE, COMPRESS, EXPAND) \
    WIDE INLINED void gather_run_wide_##N(const word##N *words, uint64_t bits, word##N *values) \
    { \
        for (int i = 0; i < RUN; i += LANES) { \
            uint64_t lanes = bits >> i & (((uint64_t)1 << LANES) - 1); \
            STORE(values, COMPRESS((__mmask##LANES)lanes, LOAD(words + i))); \
            values += __builtin_popcountll(lanes); \
        } \
    } \
\
    WIDE INLINED void scatter_run_wide_##N(const word##N *values, uint64_t bits, word##N *words) \
    { \
        for (int i = 0; i < RUN; i += LANES) { \
            uint64_t lanes = bits >> i & (((uint64_t)1 << LANES) - 1); \
            STORE(words + i, EXPAND((__mmask##LANES)lanes, LOAD(values))); \
            values += __builtin_popcountll(lanes); \
        } \
    }

#define LOAD_2(FROM) _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(FROM)))
#define STORE_2(TO, LANES) _mm256_storeu_si256((__m256i *)(TO), _mm512_cvtepi32_epi16(LANES))
WIDE_RUNS_OF(2, 16, LOAD_2, STORE_2, _mm512_maskz_compress_epi32, _mm512_maskz_expand_epi32)
WIDE_RUNS_OF(4, 16, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_maskz_compress_epi32, _mm512_maskz_expand_epi32)
WIDE_RUNS_OF(8, 8, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_maskz_compress_epi64, _mm512_maskz_expand_epi64)

RUNS_OF(2, wide, WIDE)
RUNS_OF(4, wide, WIDE)
RUNS_OF(8, wide, WIDE)

#define EITHER(FUNCTION, N, ...) \
    (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") ? FUNCTION##_wide_##N(__VA_ARGS__) \
                                                                              : FUNCTION##_plain_##N(__VA_ARGS__))
#else
#define EITHER(FUNCTION, N, ...) FUNCTION##_plain_##N(__VA_ARGS__)
#endif

/* Whether there is one bit for each word, and whatever else there is consists of words. */
static int
is_of_words(Py_ssize_t size, const Py_buffer *words, const Py_buffer *mask, const Py_buffer *values)
{
    if ((size != 2 && size != 4 && size != 8) || words->len % size || (values != NULL && values->len % size)
        || mask->len != words->len / size / 8 + (words->len / size % 8 != 0)) {
        PyErr_SetString(PyExc_ValueError, "expected words of 2, 4 or 8 bytes, and one bit for each");
        return 0;
    }
    return 1;
}

static PyObject *
mask_nonzero(PyObject *module, PyObject *args)
{
    Py_buffer words, mask;
    Py_ssize_t size, total = 0;
    if (!PyArg_ParseTuple(args, "y*nw*:mask_nonzero", &words, &size, &mask)) {
        return NULL;
    }
    if (is_of_words(size, &words, &mask, NULL)) {
        Py_BEGIN_ALLOW_THREADS
        switch (size) {
        case 2: total = mask_2(words.buf, words.len / 2, mask.buf); break;
        case 4: total = mask_4(words.buf, words.len / 4, mask.buf); break;
        case 8: total = mask_8(words.buf, words.len / 8, mask.buf); break;
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&words);
    PyBuffer_Release(&mask);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(total);
}

static PyObject *
gather_masked(PyObject *module, PyObject *args)
{
    Py_buffer words, mask, values;
    Py_ssize_t size;
    int fits = 0;
    if (!PyArg_ParseTuple(args, "y*ny*w*:gather_masked", &words, &size, &mask, &values)) {
        return NULL;
    }
    if (is_of_words(size, &words, &mask, &values)) {
        Py_BEGIN_ALLOW_THREADS
        switch (size) {
        case 2: fits = EITHER(gather, 2, words.buf, words.len / 2, mask.buf, values.buf, values.len / 2); break;
        case 4: fits = EITHER(gather, 4, words.buf, words.len / 4, mask.buf, values.buf, values.len / 4); break;
        case 8: fits = EITHER(gather, 8, words.buf, words.len / 8, mask.buf, values.buf, values.len / 8); break;
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&words);
    PyBuffer_Release(&mask);
    PyBuffer_Release(&values);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(fits);
}

static PyObject *
scatter_masked(PyObject *module, PyObject *args)
{
    Py_buffer values, mask, words;
    Py_ssize_t size;
    int fits = 0;
    if (!PyArg_ParseTuple(args, "y*ny*w*:scatter_masked", &values, &size, &mask, &words)) {
        return NULL;
    }
    if (is_of_words(size, &words, &mask, &values)) {
        Py_BEGIN_ALLOW_THREADS
        switch (size) {
        case 2: fits = EITHER(scatter, 2, values.buf, values.len / 2, mask.buf, words.buf, words.len / 2); break;
        case 4: fits = EITHER(scatter, 4, values.buf, values.len / 4, mask.buf, words.buf, words.len / 4); break;
        case 8: fits = EITHER(scatter, 8, values.buf, values.len / 8, mask.buf, words.buf, words.len / 8); break;
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&values);
    PyBuffer_Release(&mask);
    PyBuffer_Release(&words);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(fits);
}

PyMethodDef sparse_functions[] = {
    {"mask_nonzero", mask_nonzero, METH_VARARGS,
     "mask_nonzero(words, size, mask)\n\nFill a bit for each word that is not zero, and return how many are."},
    {"gather_masked", gather_masked, METH_VARARGS,
     "gather_masked(words, size, mask, values)\n\nFill values with those of the words whose bit is one."},
    {"scatter_masked", scatter_masked, METH_VARARGS,
     "scatter_masked(values, size, mask, words)\n\nFill words with the values where the bit is one, else with zero."},
    {NULL, NULL, 0, NULL},
};
