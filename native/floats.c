/* bfloat16 and back, as tensorstash.kernels.floats defines them. */

#include "floats.h"
#include "tables.h"

/* Fill as many elements of the other width as there are of this. */
static PyObject *
convert(PyObject *args, int narrows)
{
    Py_buffer from, to;
    if (!PyArg_ParseTuple(args, "y*w*", &from, &to)) {
        return NULL;
    }
    Py_ssize_t from_bytes = narrows ? 4 : 2, to_bytes = narrows ? 2 : 4, count = from.len / from_bytes;
    if (from.len % from_bytes || to.len % to_bytes || to.len / to_bytes != count
        || (uintptr_t)from.buf % (size_t)from_bytes || (uintptr_t)to.buf % (size_t)to_bytes) {
        PyErr_SetString(PyExc_ValueError, "expected as many words of 2 bytes as of 4, at multiples of their size");
    }
    else {
        Py_BEGIN_ALLOW_THREADS
        if (narrows) {
            narrow_bfloat16(from.buf, to.buf, (size_t)count);
        }
        else {
            widen_bfloat16(from.buf, to.buf, (size_t)count);
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&from);
    PyBuffer_Release(&to);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *
narrow(PyObject *Py_UNUSED(module), PyObject *args)
{
    return convert(args, 1);
}

static PyObject *
widen(PyObject *Py_UNUSED(module), PyObject *args)
{
    return convert(args, 0);
}

PyMethodDef floats_functions[] = {
    {"narrow_bfloat16", narrow, METH_VARARGS, "narrow_bfloat16(values, bits)\n\nFill words with rounded float32."},
    {"widen_bfloat16", widen, METH_VARARGS, "widen_bfloat16(bits, values)\n\nFill float32 with what words stand for."},
    {NULL, NULL, 0, NULL},
};
