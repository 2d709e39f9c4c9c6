/* The fields of floats, as tensorstash.kernels.float_fields defines them. */

#include "tables.h"
#include "words.h"

enum { SIGN_FIELD = -1 };

/* Bits from `start` on, of floats of `size` bytes, as words of `width` bytes. */
INLINE void
each_cut(const void *floats, Py_ssize_t count, int size, int start, void *field, int width)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        uint64_t word = get_word(floats, i, size);
        /* Vectors hold twice as many words of 4 bytes. */
        put_word(field, i, width, size == 8 ? word >> start : (uint32_t)word >> start);
    }
}

/* The sign, and the seven bits below the exponent. */
INLINE void
each_sign(const void *floats, Py_ssize_t count, int size, word1 *field)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        uint16_t high = (uint16_t)(get_word(floats, i, size) >> (8 * size - 16));
        field[i] = (word1)((high & 0x7F) | (high >> 8 & 0x80));
    }
}

EACH_WIDTH static void
cut(const void *floats, Py_ssize_t count, int size, int start, void *field, int width)
{
    switch (start == SIGN_FIELD ? size : 10 * size + width) {
    case 2: each_sign(floats, count, 2, field); break;
    case 4: each_sign(floats, count, 4, field); break;
    case 8: each_sign(floats, count, 8, field); break;
    case 21: each_cut(floats, count, 2, start, field, 1); break;
    case 41: each_cut(floats, count, 4, start, field, 1); break;
    case 42: each_cut(floats, count, 4, start, field, 2); break;
    case 81: each_cut(floats, count, 8, start, field, 1); break;
    case 82: each_cut(floats, count, 8, start, field, 2); break;
    default: each_cut(floats, count, 8, start, field, 4); break;
    }
}

INLINE uint16_t
high_bits(word1 exponent, word1 sign)
{
    return (uint16_t)((uint16_t)(exponent << 7) | (sign & 0x7F) | (uint16_t)((sign & 0x80) << 8));
}

INLINE void
each_join(void *floats, Py_ssize_t count, int size, const word1 *exponents, const word1 *signs, const word2 *middle,
          const word4 *low)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        uint64_t word = (uint64_t)high_bits(exponents[i], signs[i]) << (8 * size - 16);
        word |= size > 2 ? (uint64_t)middle[i] << (8 * size - 32) : 0;
        word |= size > 4 ? low[i] : 0;
        put_word(floats, i, size, word);
    }
}

EACH_WIDTH static void
join(void *floats, Py_ssize_t count, int size, const word1 *exponents, const word1 *signs, const word2 *middle,
     const word4 *low)
{
    switch (size) {
    case 2: each_join(floats, count, 2, exponents, signs, middle, low); break;
    case 4: each_join(floats, count, 4, exponents, signs, middle, low); break;
    default: each_join(floats, count, 8, exponents, signs, middle, low); break;
    }
}

/* Whether it is one such field of as many floats. */
static int
is_field(const Py_buffer *floats, int start, const Py_buffer *field)
{
    Py_ssize_t size = floats->itemsize, width = field->itemsize;
    return is_word(width) && width < size && start >= SIGN_FIELD && start < 8 * size
        && (start != SIGN_FIELD || width == 1) && field->len % width == 0 && field->len / width == floats->len / size;
}

/* Floats at a time, so that they stay in the cache while one field after the other is taken. */
enum { AT_ONCE = 1 << 12, MOST_FIELDS = 4 };

static PyObject *
take_fields(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer floats, fields[MOST_FIELDS] = {{0}};
    int starts[MOST_FIELDS];
    if (!PyArg_ParseTuple(args, "y*|iw*iw*iw*iw*:take_fields", &floats, &starts[0], &fields[0], &starts[1], &fields[1],
                          &starts[2], &fields[2], &starts[3], &fields[3])) {
        return NULL;
    }
    const int size = (int)floats.itemsize, taken = (int)(PyTuple_GET_SIZE(args) / 2);
    int fit = is_word(floats.itemsize) && size > 1 && floats.len % size == 0;
    for (int k = 0; k < taken; k++) {
        fit = fit && is_field(&floats, starts[k], &fields[k]);
    }
    if (!fit) {
        PyErr_SetString(PyExc_ValueError, "expected floats of 2, 4 or 8 bytes, and a narrower field of each");
    }
    else {
        Py_ssize_t count = floats.len / size;
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t done = 0; done < count; done += AT_ONCE) {
            Py_ssize_t here = count - done < AT_ONCE ? count - done : AT_ONCE;
            for (int k = 0; k < taken; k++) {
                int width = (int)fields[k].itemsize;
                cut((const char *)floats.buf + done * size, here, size, starts[k],
                    (char *)fields[k].buf + done * width, width);
            }
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&fields[3]);
    PyBuffer_Release(&fields[2]);
    return released(&floats, &fields[0], &fields[1]) ? Py_NewRef(Py_None) : NULL;
}

static PyObject *
join_fields(PyObject *Py_UNUSED(module), PyObject *args)
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
        join(floats.buf, count, (int)size, exponents.buf, signs.buf, middle.buf, low.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&middle);
    PyBuffer_Release(&low);
    return released(&floats, &exponents, &signs) ? Py_NewRef(Py_None) : NULL;
}

PyMethodDef float_fields_functions[] = {
    {"take_fields", take_fields, METH_VARARGS,
     "take_fields(floats, start, field, ...)\n\n"
     "Fill at most four fields with the bits of each float from a start on, or with its sign and seven bits where that "
     "is -1."},
    {"join_fields", join_fields, METH_VARARGS,
     "join_fields(floats, *fields)\n\nFill floats from their fields, the highest first."},
    {NULL, NULL, 0, NULL},
};
