/* Conversion between float32 and floats of 16 bits, as tensorstash.kernels.floats defines it. */

#include "floats.h"
#include "tables.h"

/* Fill as many elements of the other width as there are of this. */
static PyObject *
convert(PyObject *args, int narrows)
{
    Py_buffer from, to;
    const char *dtype;
    if (!PyArg_ParseTuple(args, "y*w*s", &from, &to, &dtype)) {
        return NULL;
    }
    const Kind kind = kind_of(dtype);
    Py_ssize_t from_bytes = narrows ? 4 : 2, to_bytes = narrows ? 2 : 4, count = from.len / from_bytes;
    if (kind != BFLOAT16 && kind != FLOAT16) {
        PyErr_Format(PyExc_ValueError, "got %s, expected bfloat16 or float16", dtype);
    }
    else if (from.len % from_bytes || to.len % to_bytes || to.len / to_bytes != count
             || (uintptr_t)from.buf % (size_t)from_bytes || (uintptr_t)to.buf % (size_t)to_bytes) {
        PyErr_SetString(PyExc_ValueError, "expected as many words of 2 bytes as of 4, at multiples of their size");
    }
    else {
        Py_BEGIN_ALLOW_THREADS
        fenv_t before;
        const int has_mode = default_mode(&before);
        if (narrows) {
            narrow(kind, from.buf, to.buf, (size_t)count);
        }
        else {
            widen(kind, from.buf, to.buf, (size_t)count);
        }
        if (has_mode) {
            fesetenv(&before);
        }
        Py_END_ALLOW_THREADS
    }
    return released(&from, &to, NULL) ? Py_NewRef(Py_None) : NULL;
}

static PyObject *
narrow_floats(PyObject *Py_UNUSED(module), PyObject *args)
{
    return convert(args, 1);
}

static PyObject *
widen_floats(PyObject *Py_UNUSED(module), PyObject *args)
{
    return convert(args, 0);
}

PyMethodDef floats_functions[] = {
    {"narrow_floats", narrow_floats, METH_VARARGS,
     "narrow_floats(values, bits, dtype)\n\nFill words with float32 rounded to floats of 16 bits."},
    {"widen_floats", widen_floats, METH_VARARGS,
     "widen_floats(bits, values, dtype)\n\nFill float32 with what words stand for."},
    {NULL, NULL, 0, NULL},
};
