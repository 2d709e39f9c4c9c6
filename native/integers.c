/* Integers at the width that their range needs, as tensorstash.codecs.narrow defines it. */

#include "simd.h"
#include "tables.h"
#include "words.h"

typedef int16_t __attribute__((aligned(1), may_alias)) int2;
typedef int32_t __attribute__((aligned(1), may_alias)) int4;
typedef int64_t __attribute__((aligned(1), may_alias)) int8;

#define EXTREMES_OF(TYPE) \
    EACH_WIDTH static void extremes_##TYPE(const TYPE *words, Py_ssize_t count, TYPE *least, TYPE *largest) \
    { \
        TYPE low = words[0], high = words[0]; \
        for (Py_ssize_t i = 0; i < count; i++) { \
            TYPE word = words[i]; \
            low = word < low ? word : low; \
            high = word > high ? word : high; \
        } \
        *least = low; \
        *largest = high; \
    }

EXTREMES_OF(int2)
EXTREMES_OF(int4)
EXTREMES_OF(int8)
EXTREMES_OF(word2)
EXTREMES_OF(word4)
EXTREMES_OF(word8)

#define NARROW_OF(N, W) \
    EACH_WIDTH static void narrow_##N##_##W(const word##N *words, Py_ssize_t count, word##N least, word##W *stored) \
    { \
        for (Py_ssize_t i = 0; i < count; i++) { \
            stored[i] = (word##W)(words[i] - least); \
        } \
    } \
\
    EACH_WIDTH static void widen_##N##_##W(const word##W *stored, Py_ssize_t count, word##N least, word##N *words) \
    { \
        for (Py_ssize_t i = 0; i < count; i++) { \
            words[i] = (word##N)(stored[i] + least); \
        } \
    }

NARROW_OF(2, 1)
NARROW_OF(4, 1)
NARROW_OF(4, 2)
NARROW_OF(8, 1)
NARROW_OF(8, 2)
NARROW_OF(8, 4)

#define BOTH(TYPE, CONVERT, WIDE) \
    do { \
        TYPE low, high; \
        Py_BEGIN_ALLOW_THREADS \
        extremes_##TYPE(words.buf, words.len / (Py_ssize_t)sizeof low, &low, &high); \
        Py_END_ALLOW_THREADS \
        least = CONVERT((WIDE)low); \
        largest = CONVERT((WIDE)high); \
    } while (0)

static PyObject *
extremes(PyObject *module, PyObject *args)
{
    Py_buffer words;
    Py_ssize_t size;
    int is_signed;
    PyObject *least = NULL, *largest = NULL, *pair = NULL;
    if (!PyArg_ParseTuple(args, "y*np:extremes", &words, &size, &is_signed)) {
        return NULL;
    }
    if ((size != 2 && size != 4 && size != 8) || words.len % size || !words.len) {
        PyErr_SetString(PyExc_ValueError, "expected at least one integer of 2, 4 or 8 bytes");
    }
    else {
        switch (is_signed ? -size : size) {
        case -2: BOTH(int2, PyLong_FromLongLong, long long); break;
        case -4: BOTH(int4, PyLong_FromLongLong, long long); break;
        case -8: BOTH(int8, PyLong_FromLongLong, long long); break;
        case 2: BOTH(word2, PyLong_FromUnsignedLongLong, unsigned long long); break;
        case 4: BOTH(word4, PyLong_FromUnsignedLongLong, unsigned long long); break;
        case 8: BOTH(word8, PyLong_FromUnsignedLongLong, unsigned long long); break;
        }
    }
    PyBuffer_Release(&words);
    if (least != NULL && largest != NULL) {
        pair = PyTuple_Pack(2, least, largest);
    }
    Py_XDECREF(least);
    Py_XDECREF(largest);
    return pair;
}

/* The width of what is stored for `count` words, or -1 with an error. */
static Py_ssize_t
stored_width(const Py_buffer *words, const Py_buffer *least, const Py_buffer *stored)
{
    Py_ssize_t size = least->len;
    Py_ssize_t count = size ? words->len / size : 0;
    Py_ssize_t width = count ? stored->len / count : 0;
    if ((size != 2 && size != 4 && size != 8) || words->len % size || (width != 1 && width != 2 && width != 4)
        || width >= size || stored->len != width * count) {
        PyErr_SetString(PyExc_ValueError, "expected integers of 2, 4 or 8 bytes, their least, and a width below theirs");
        return -1;
    }
    return width;
}

#define NARROWED(N, W) narrow_##N##_##W(words.buf, words.len / N, *(const word##N *)least.buf, stored.buf)
#define WIDENED(N, W) widen_##N##_##W(stored.buf, words.len / N, *(const word##N *)least.buf, words.buf)

static PyObject *
narrow_words(PyObject *module, PyObject *args)
{
    Py_buffer words, least, stored;
    if (!PyArg_ParseTuple(args, "y*y*w*:narrow_words", &words, &least, &stored)) {
        return NULL;
    }
    Py_ssize_t width = stored_width(&words, &least, &stored);
    if (width > 0) {
        Py_BEGIN_ALLOW_THREADS
        switch (10 * least.len + width) {
        case 21: NARROWED(2, 1); break;
        case 41: NARROWED(4, 1); break;
        case 42: NARROWED(4, 2); break;
        case 81: NARROWED(8, 1); break;
        case 82: NARROWED(8, 2); break;
        case 84: NARROWED(8, 4); break;
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&words);
    PyBuffer_Release(&least);
    PyBuffer_Release(&stored);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *
widen_words(PyObject *module, PyObject *args)
{
    Py_buffer stored, least, words;
    if (!PyArg_ParseTuple(args, "y*y*w*:widen_words", &stored, &least, &words)) {
        return NULL;
    }
    Py_ssize_t width = stored_width(&words, &least, &stored);
    if (width > 0) {
        Py_BEGIN_ALLOW_THREADS
        switch (10 * least.len + width) {
        case 21: WIDENED(2, 1); break;
        case 41: WIDENED(4, 1); break;
        case 42: WIDENED(4, 2); break;
        case 81: WIDENED(8, 1); break;
        case 82: WIDENED(8, 2); break;
        case 84: WIDENED(8, 4); break;
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&stored);
    PyBuffer_Release(&least);
    PyBuffer_Release(&words);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

PyMethodDef integers_functions[] = {
    {"extremes", extremes, METH_VARARGS,
     "extremes(words, size, is_signed)\n\nReturn the smallest and the largest of integers of some size."},
    {"narrow_words", narrow_words, METH_VARARGS,
     "narrow_words(words, least, stored)\n\nFill narrower words with the distances from the least."},
    {"widen_words", widen_words, METH_VARARGS,
     "widen_words(stored, least, words)\n\nFill words with the sums of the least and narrower distances."},
    {NULL, NULL, 0, NULL},
};
