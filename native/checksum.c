/* Sums of what is stored, as tensorstash.stores.checksum defines them. */

#include "simd.h"
#include "tables.h"

EACH_WIDTH static void
add_columns(const uint64_t *words, Py_ssize_t count, uint64_t *sums, Py_ssize_t width)
{
    for (Py_ssize_t row = 0; row < count; row += width) {
        Py_ssize_t here = count - row < width ? count - row : width;
        for (Py_ssize_t column = 0; column < here; column++) {
            sums[column] += words[row + column];
        }
    }
}

static PyObject *
column_sums(PyObject *module, PyObject *args)
{
    Py_buffer words, sums;
    if (!PyArg_ParseTuple(args, "y*w*:column_sums", &words, &sums)) {
        return NULL;
    }
    if (sums.len < 8 || sums.len % 8 || words.len % 8) {
        PyErr_SetString(PyExc_ValueError, "expected words of 8 bytes and at least one sum");
    }
    else {
        Py_BEGIN_ALLOW_THREADS
        add_columns(words.buf, words.len / 8, sums.buf, sums.len / 8);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&words);
    PyBuffer_Release(&sums);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

PyMethodDef checksum_functions[] = {
    {"column_sums", column_sums, METH_VARARGS,
     "column_sums(words, sums)\n\nAdd the words of a matrix, row by row, to the sums of its columns."},
    {NULL, NULL, 0, NULL},
};
