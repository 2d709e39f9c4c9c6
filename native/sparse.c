/* What is not zero, apart from where it is, as tensorstash.codecs.sparse defines it. */

#include "simd.h"
#include "tables.h"
#include "words.h"

/* Elements at a time: those whose bits make one word of the mask. */
enum { RUN = 64 };

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

#define SPARSE_OF(N) \
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
    } \
\
    /* Whether the mask has as many ones as there is room for; never writes beyond that. */ \
    EACH_WIDTH static int gather_##N( \
        const word##N *words, Py_ssize_t count, const uint8_t *mask, word##N *values, Py_ssize_t room) \
    { \
        Py_ssize_t done = 0; \
        for (Py_ssize_t start = 0; start < count; start += RUN) { \
            uint64_t word = mask_word(mask, start, count); \
            int ones = __builtin_popcountll(word); \
            if (ones > room - done) { \
                return 0; \
            } \
            if (ones == RUN) { \
                memcpy(values + done, words + start, RUN * sizeof *words); \
            } \
            else if (ones > 16 && room - done >= RUN && count - start >= RUN) { \
                /* Without branches: what is not wanted is overwritten by the next. */ \
                word##N *place = values + done; \
                for (Py_ssize_t i = 0; i < RUN; i++) { \
                    *place = words[start + i]; \
                    place += word >> i & 1; \
                } \
            } \
            else { \
                for (word##N *place = values + done; word; word &= word - 1) { \
                    *place++ = words[start + __builtin_ctzll(word)]; \
                } \
            } \
            done += ones; \
        } \
        return done == room; \
    } \
\
    /* Whether the mask has as many ones as there are values; never reads beyond them. */ \
    EACH_WIDTH static int scatter_##N( \
        const word##N *values, Py_ssize_t size, const uint8_t *mask, word##N *words, Py_ssize_t count) \
    { \
        Py_ssize_t done = 0; \
        for (Py_ssize_t start = 0; start < count; start += RUN) { \
            uint64_t word = mask_word(mask, start, count); \
            int ones = __builtin_popcountll(word); \
            if (ones > size - done) { \
                return 0; \
            } \
            if (ones == RUN) { \
                memcpy(words + start, values + done, RUN * sizeof *words); \
            } \
            else if (ones > 16 && size - done >= RUN && count - start >= RUN) { \
                const word##N *place = values + done; \
                for (Py_ssize_t i = 0; i < RUN; i++) { \
                    word##N there = word >> i & 1; \
                    words[start + i] = *place & -there; \
                    place += there; \
                } \
            } \
            else { \
                Py_ssize_t here = count - start < RUN ? count - start : RUN; \
                memset(words + start, 0, (size_t)here * sizeof *words); \
                for (const word##N *place = values + done; word; word &= word - 1) { \
                    words[start + __builtin_ctzll(word)] = *place++; \
                } \
            } \
            done += ones; \
        } \
        return done == size; \
    }

SPARSE_OF(2)
SPARSE_OF(4)
SPARSE_OF(8)

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
        case 2: fits = gather_2(words.buf, words.len / 2, mask.buf, values.buf, values.len / 2); break;
        case 4: fits = gather_4(words.buf, words.len / 4, mask.buf, values.buf, values.len / 4); break;
        case 8: fits = gather_8(words.buf, words.len / 8, mask.buf, values.buf, values.len / 8); break;
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
        case 2: fits = scatter_2(values.buf, values.len / 2, mask.buf, words.buf, words.len / 2); break;
        case 4: fits = scatter_4(values.buf, values.len / 4, mask.buf, words.buf, words.len / 4); break;
        case 8: fits = scatter_8(values.buf, values.len / 8, mask.buf, words.buf, words.len / 8); break;
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
