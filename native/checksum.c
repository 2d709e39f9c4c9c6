/* Sums of what is stored, as tensorstash.stores.checksum defines them. */

#include "simd.h"
#include "tables.h"

/* Data lies at any address, and the compiler has to know. */
typedef uint64_t word __attribute__((aligned(1), may_alias));

/* Four rows at once: what memory is asked for at one time is what it is fast by, and the sums stay where they are. */
INLINE void
each_column(const word *restrict words, word *restrict copy, Py_ssize_t count, word *restrict sums, Py_ssize_t width)
{
    Py_ssize_t done = 0;
    for (; done + 4 * width <= count; done += 4 * width) {
        for (Py_ssize_t first = done; first < done + width; first++) {
            word one = words[first], two = words[first + width];
            word three = words[first + 2 * width], four = words[first + 3 * width];
            if (copy) {
                copy[first] = one;
                copy[first + width] = two;
                copy[first + 2 * width] = three;
                copy[first + 3 * width] = four;
            }
            sums[first - done] += (one + two) + (three + four);
        }
    }
    for (; done < count; done += width) {
        Py_ssize_t here = count - done < width ? count - done : width;
        for (Py_ssize_t column = 0; column < here; column++) {
            word found = words[done + column];
            if (copy) {
                copy[done + column] = found;
            }
            sums[column] += found;
        }
    }
}

EACH_WIDTH static void
add_columns(const word *words, Py_ssize_t count, word *sums, Py_ssize_t width)
{
    each_column(words, NULL, count, sums, width);
}

EACH_WIDTH static void
copy_and_add_columns(const word *words, word *copy, Py_ssize_t count, word *sums, Py_ssize_t width)
{
    each_column(words, copy, count, sums, width);
}

static PyObject *
column_sums(PyObject *module, PyObject *args)
{
    Py_buffer words, sums, copy = {0};
    Py_ssize_t block;
    if (!PyArg_ParseTuple(args, "y*w*n|w*:column_sums", &words, &sums, &block, &copy)) {
        return NULL;
    }
    Py_ssize_t count = words.len / 8;
    Py_ssize_t blocks = block > 0 ? count / block + (count % block > 0) : 0;
    if (words.len % 8 || (copy.buf && copy.len != words.len) || !blocks || sums.len < 8 || sums.len % (8 * blocks)) {
        PyErr_SetString(PyExc_ValueError, "expected whole words, as many to copy to, and equal rows of sums per block");
    }
    else {
        Py_ssize_t width = sums.len / 8 / blocks;
        word *row = sums.buf;
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t start = 0; start < count; start += block, row += width) {
            const word *from = (const word *)words.buf + start;
            Py_ssize_t here = count - start < block ? count - start : block;
            if (copy.buf) {
                copy_and_add_columns(from, (word *)copy.buf + start, here, row, width);
            }
            else {
                add_columns(from, here, row, width);
            }
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&words);
    PyBuffer_Release(&sums);
    if (copy.obj) {
        PyBuffer_Release(&copy);
    }
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

PyMethodDef checksum_functions[] = {
    {"column_sums", column_sums, METH_VARARGS,
     "column_sums(words, sums, block, copy=None)\n\nAdd the words of each block, seen as the rows of a matrix, to the "
     "sums of its columns, and copy them on the way."},
    {NULL, NULL, 0, NULL},
};
