/* Integers as their distance from the smallest one, as tensorstash.kernels.integers defines it. */

#include "tables.h"
#include "words.h"

typedef int16_t __attribute__((aligned(1), may_alias)) int2;
typedef int32_t __attribute__((aligned(1), may_alias)) int4;
typedef int64_t __attribute__((aligned(1), may_alias)) int8;

/* The range of signed integers, or of unsigned ones, whose order is that of signed ones once `top`, their highest bit,
 * is turned over. Vectors compare signed integers of one width, so that each has a loop of its own. */

INLINE void
range_of_2(const int2 *words, Py_ssize_t count, int16_t top, int64_t *least, int64_t *largest)
{
    int16_t low = INT16_MAX, high = INT16_MIN;
    for (Py_ssize_t i = 0; i < count; i++) {
        int16_t word = (int16_t)(words[i] ^ top);
        low = word < low ? word : low;
        high = word > high ? word : high;
    }
    *least = low;
    *largest = high;
}

INLINE void
range_of_4(const int4 *words, Py_ssize_t count, int32_t top, int64_t *least, int64_t *largest)
{
    int32_t low = INT32_MAX, high = INT32_MIN;
    for (Py_ssize_t i = 0; i < count; i++) {
        int32_t word = words[i] ^ top;
        low = word < low ? word : low;
        high = word > high ? word : high;
    }
    *least = low;
    *largest = high;
}

INLINE void
range_of_8(const int8 *words, Py_ssize_t count, int64_t top, int64_t *least, int64_t *largest)
{
    int64_t low = INT64_MAX, high = INT64_MIN;
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t word = words[i] ^ top;
        low = word < low ? word : low;
        high = word > high ? word : high;
    }
    *least = low;
    *largest = high;
}

EACH_WIDTH static void
range_of(const void *words, Py_ssize_t count, int size, int is_signed, int64_t *least, int64_t *largest)
{
    switch (size) {
    case 2: range_of_2(words, count, is_signed ? 0 : INT16_MIN, least, largest); break;
    case 4: range_of_4(words, count, is_signed ? 0 : INT32_MIN, least, largest); break;
    default: range_of_8(words, count, is_signed ? 0 : INT64_MIN, least, largest); break;
    }
}

static PyObject *
number_of(int64_t value, int size, int is_signed)
{
    uint64_t top = (uint64_t)1 << (8 * size - 1);
    return is_signed ? PyLong_FromLongLong(value) : PyLong_FromUnsignedLongLong((uint64_t)value + top);
}

static PyObject *
integer_range(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer words;
    int is_signed, size;
    int64_t least = 0, largest = 0;
    if (!PyArg_ParseTuple(args, "y*p:integer_range", &words, &is_signed)) {
        return NULL;
    }
    size = (int)words.itemsize;
    if (!is_word(words.itemsize) || size == 1 || words.len < size) {
        PyErr_SetString(PyExc_ValueError, "expected at least one integer of 2, 4 or 8 bytes");
    }
    else {
        Py_BEGIN_ALLOW_THREADS
        range_of(words.buf, words.len / size, size, is_signed, &least, &largest);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&words);
    return PyErr_Occurred()
        ? NULL : Py_BuildValue("(NN)", number_of(least, size, is_signed), number_of(largest, size, is_signed));
}

INLINE void
each_shift(const void *from, Py_ssize_t count, int size, uint64_t by, void *to, int width)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        put_word(to, i, width, get_word(from, i, size) + by);
    }
}

/* Add a number to words of one size, as words of another. */
EACH_WIDTH static void
shift(const void *from, Py_ssize_t count, int size, uint64_t by, void *to, int width)
{
    switch (10 * size + width) {
    case 12: each_shift(from, count, 1, by, to, 2); break;
    case 14: each_shift(from, count, 1, by, to, 4); break;
    case 18: each_shift(from, count, 1, by, to, 8); break;
    case 21: each_shift(from, count, 2, by, to, 1); break;
    case 24: each_shift(from, count, 2, by, to, 4); break;
    case 28: each_shift(from, count, 2, by, to, 8); break;
    case 41: each_shift(from, count, 4, by, to, 1); break;
    case 42: each_shift(from, count, 4, by, to, 2); break;
    case 48: each_shift(from, count, 4, by, to, 8); break;
    case 81: each_shift(from, count, 8, by, to, 1); break;
    case 82: each_shift(from, count, 8, by, to, 2); break;
    default: each_shift(from, count, 8, by, to, 4); break;
    }
}

/* Whether there are as many narrower words as there are words like the base; else an error is set. */
static int
are_distances(const Py_buffer *words, const Py_buffer *base, const Py_buffer *stored)
{
    Py_ssize_t size = words->itemsize, width = stored->itemsize;
    if (!is_word(size) || !is_word(width) || width >= size || base->len != size || words->len % size
        || stored->len % width || stored->len / width != words->len / size) {
        PyErr_SetString(PyExc_ValueError, "expected integers of 2, 4 or 8 bytes, one like them, and as many narrower");
        return 0;
    }
    return 1;
}

/* Between words and narrower distances from a base. */
static PyObject *
shift_words(PyObject *args, int narrows)
{
    Py_buffer from, base, to;
    if (!PyArg_ParseTuple(args, "y*y*w*", &from, &base, &to)) {
        return NULL;
    }
    if (are_distances(narrows ? &from : &to, &base, narrows ? &to : &from)) {
        int size = (int)from.itemsize, width = (int)to.itemsize;
        uint64_t by = get_word(base.buf, 0, narrows ? size : width);
        Py_BEGIN_ALLOW_THREADS
        shift(from.buf, from.len / size, size, narrows ? -by : by, to.buf, width);
        Py_END_ALLOW_THREADS
    }
    return released(&from, &base, &to) ? Py_NewRef(Py_None) : NULL;
}

static PyObject *
subtract_base(PyObject *Py_UNUSED(module), PyObject *args)
{
    return shift_words(args, 1);
}

static PyObject *
add_base(PyObject *Py_UNUSED(module), PyObject *args)
{
    return shift_words(args, 0);
}

PyMethodDef integers_functions[] = {
    {"integer_range", integer_range, METH_VARARGS,
     "integer_range(words, is_signed)\n\nReturn the smallest and the largest of integers of 2, 4 or 8 bytes."},
    {"subtract_base", subtract_base, METH_VARARGS,
     "subtract_base(words, base, stored)\n\nFill narrower words with the distances from the base."},
    {"add_base", add_base, METH_VARARGS,
     "add_base(stored, base, words)\n\nFill words with the sums of narrower distances and the base."},
    {NULL, NULL, 0, NULL},
};
