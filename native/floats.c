/* bfloat16 and back, as tensorstash.codecs.floats defines them. */

#include "floats.h"
#include "tables.h"

/* Whether these are as many floats as words of 16 bits; else an error. */
static int
fit(const Py_buffer *values, const Py_buffer *bits)
{
    if (values->len % 4 || bits->len % 2 || values->len / 4 != bits->len / 2) {
        PyErr_SetString(PyExc_ValueError, "expected as many words of 2 bytes as of 4");
        return 0;
    }
    return 1;
}

static PyObject *
narrow(PyObject *module, PyObject *args)
{
    Py_buffer values, bits;
    if (!PyArg_ParseTuple(args, "y*w*:narrow_bfloat16", &values, &bits)) {
        return NULL;
    }
    if (fit(&values, &bits)) {
        Py_BEGIN_ALLOW_THREADS
        narrow_bfloat16(values.buf, bits.buf, (size_t)bits.len / 2);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&values);
    PyBuffer_Release(&bits);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *
widen(PyObject *module, PyObject *args)
{
    Py_buffer bits, values;
    if (!PyArg_ParseTuple(args, "y*w*:widen_bfloat16", &bits, &values)) {
        return NULL;
    }
    if (fit(&values, &bits)) {
        Py_BEGIN_ALLOW_THREADS
        widen_bfloat16(bits.buf, values.buf, (size_t)bits.len / 2);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&bits);
    PyBuffer_Release(&values);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

PyMethodDef floats_functions[] = {
    {"narrow_bfloat16", narrow, METH_VARARGS, "narrow_bfloat16(values, bits)\n\nFill words with rounded float32."},
    {"widen_bfloat16", widen, METH_VARARGS, "widen_bfloat16(bits, values)\n\nFill float32 with what words stand for."},
    {NULL, NULL, 0, NULL},
};
