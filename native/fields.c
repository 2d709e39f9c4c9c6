/* The fields of floats, as tensorstash.codecs.fields defines them. */

#include "fields.h"
#include "simd.h"
#include "words.h"

/* Bits from `shift` on, of floats of N bytes, as words of W bytes. */
#define CUT_OF(N, W) \
    EACH_WIDTH static void cut_##N##_##W(const word##N *floats, Py_ssize_t count, int shift, word##W *field) \
    { \
        for (Py_ssize_t i = 0; i < count; i++) { \
            field[i] = (word##W)(floats[i] >> shift); \
        } \
    }

CUT_OF(2, 1)
CUT_OF(4, 1)
CUT_OF(4, 2)
CUT_OF(8, 1)
CUT_OF(8, 2)
CUT_OF(8, 4)

/* The sign, and the seven bits below the exponent. */
#define SIGN_OF(N) \
    EACH_WIDTH static void sign_##N(const word##N *floats, Py_ssize_t count, word1 *field) \
    { \
        for (Py_ssize_t i = 0; i < count; i++) { \
            uint16_t high = (uint16_t)(floats[i] >> (8 * N - 16)); \
            field[i] = (word1)((high & 0x7F) | (high >> 8 & 0x80)); \
        } \
    }

SIGN_OF(2)
SIGN_OF(4)
SIGN_OF(8)

INLINED uint16_t
high_bits(word1 exponent, word1 sign)
{
    return (uint16_t)((uint16_t)(exponent << 7) | (sign & 0x7F) | (uint16_t)((sign & 0x80) << 8));
}

EACH_WIDTH static void
join_2(word2 *floats, Py_ssize_t count, const word1 *exponents, const word1 *signs)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        floats[i] = high_bits(exponents[i], signs[i]);
    }
}

EACH_WIDTH static void
join_4(word4 *floats, Py_ssize_t count, const word1 *exponents, const word1 *signs, const word2 *low)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        floats[i] = (uint32_t)high_bits(exponents[i], signs[i]) << 16 | low[i];
    }
}

EACH_WIDTH static void
join_8(word8 *floats, Py_ssize_t count, const word1 *exponents, const word1 *signs, const word2 *middle,
       const word4 *low)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        floats[i] = (uint64_t)high_bits(exponents[i], signs[i]) << 48 | (uint64_t)middle[i] << 32 | low[i];
    }
}

int
is_field(Py_ssize_t size, int start, Py_ssize_t width)
{
    return (size == 2 || size == 4 || size == 8) && start >= -1 && start < 8 * size
        && (width == 1 || width == 2 || width == 4) && width < size && (start >= 0 || width == 1);
}

void
cut_field(const void *floats, Py_ssize_t size, Py_ssize_t count, int start, Py_ssize_t width, void *field)
{
    switch (start < 0 ? size : 10 * size + width) {
    case 2: sign_2(floats, count, field); break;
    case 4: sign_4(floats, count, field); break;
    case 8: sign_8(floats, count, field); break;
    case 21: cut_2_1(floats, count, start, field); break;
    case 41: cut_4_1(floats, count, start, field); break;
    case 42: cut_4_2(floats, count, start, field); break;
    case 81: cut_8_1(floats, count, start, field); break;
    case 82: cut_8_2(floats, count, start, field); break;
    case 84: cut_8_4(floats, count, start, field); break;
    }
}

/* Floats at a time, so that they stay in the cache while one field after the other is taken. */
enum { AT_ONCE = 1 << 12, MOST_FIELDS = 4 };

static PyObject *
take_fields(PyObject *module, PyObject *args)
{
    Py_buffer floats, fields[MOST_FIELDS];
    Py_ssize_t size, widths[MOST_FIELDS];
    int starts[MOST_FIELDS], taken = 0;
    PyObject *pairs;
    if (!PyArg_ParseTuple(args, "y*nO!:take_fields", &floats, &size, &PyTuple_Type, &pairs)) {
        return NULL;
    }
    Py_ssize_t count = size > 0 ? floats.len / size : 0;
    if (size <= 0 || floats.len % size || PyTuple_GET_SIZE(pairs) > MOST_FIELDS) {
        PyErr_SetString(PyExc_ValueError, "expected floats of 2, 4 or 8 bytes, and at most four fields of them");
    }
    for (; !PyErr_Occurred() && taken < PyTuple_GET_SIZE(pairs); taken++) {
        PyObject *pair = PyTuple_GET_ITEM(pairs, taken);
        if (!PyTuple_Check(pair)) {
            PyErr_SetString(PyExc_TypeError, "expected a tuple of tuples");
            break;
        }
        if (!PyArg_ParseTuple(pair, "iw*:take_fields", &starts[taken], &fields[taken])) {
            break;
        }
        widths[taken] = count ? fields[taken].len / count : 1;
        if (!is_field(size, starts[taken], widths[taken]) || fields[taken].len != widths[taken] * count) {
            PyErr_SetString(PyExc_ValueError, "expected floats of 2, 4 or 8 bytes, and a narrower field of each");
        }
    }
    if (!PyErr_Occurred()) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t done = 0; done < count; done += AT_ONCE) {
            Py_ssize_t here = count - done < AT_ONCE ? count - done : AT_ONCE;
            for (int k = 0; k < taken; k++) {
                cut_field((const char *)floats.buf + done * size, size, here, starts[k], widths[k],
                          (char *)fields[k].buf + done * widths[k]);
            }
        }
        Py_END_ALLOW_THREADS
    }
    while (taken > 0) {
        PyBuffer_Release(&fields[--taken]);
    }
    PyBuffer_Release(&floats);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *
join_fields(PyObject *module, PyObject *args)
{
    Py_buffer floats, exponents, signs, middle = {0}, low = {0};
    if (!PyArg_ParseTuple(args, "w*y*y*|y*y*:join_fields", &floats, &exponents, &signs, &middle, &low)) {
        return NULL;
    }
    Py_ssize_t count = exponents.len;
    Py_ssize_t size = low.obj != NULL ? 8 : middle.obj != NULL ? 4 : 2;
    if (signs.len != count || floats.len != size * count || (size > 2 && middle.len != 2 * count)
        || (size > 4 && low.len != 4 * count)) {
        PyErr_SetString(PyExc_ValueError, "expected fields of 1, 1, 2 and 4 bytes, which make up floats");
    }
    else {
        Py_BEGIN_ALLOW_THREADS
        switch (size) {
        case 2: join_2(floats.buf, count, exponents.buf, signs.buf); break;
        case 4: join_4(floats.buf, count, exponents.buf, signs.buf, middle.buf); break;
        case 8: join_8(floats.buf, count, exponents.buf, signs.buf, middle.buf, low.buf); break;
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&floats);
    PyBuffer_Release(&exponents);
    PyBuffer_Release(&signs);
    PyBuffer_Release(&middle);
    PyBuffer_Release(&low);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

PyMethodDef fields_functions[] = {
    {"take_fields", take_fields, METH_VARARGS,
     "take_fields(floats, size, pairs)\n\n"
     "Fill each field of the pairs with the bits of each float from its start on, or with its sign and seven bits where "
     "that is -1."},
    {"join_fields", join_fields, METH_VARARGS,
     "join_fields(floats, *fields)\n\nFill floats from their fields, the highest first."},
    {NULL, NULL, 0, NULL},
};
