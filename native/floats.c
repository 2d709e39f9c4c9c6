/* Conversion between float32 and floats of 16 bits, as tensorstash.kernels.floats defines it. */

#include "floats.h"
#include "tables.h"
#include "team.h"

/* Elements that stay in the second cache, both as they were and as they will be. */
enum { CACHED = 65536 };

typedef struct {
    const void *from;
    void *to;
    Kind kind;
    int narrows;
} Conversion;

static void
convert_part(void *of, size_t first, size_t last)
{
    const Conversion *c = of;
    if (c->narrows) {
        narrow(c->kind, (const float *)c->from + first, (uint16_t *)c->to + first, last - first);
    }
    else {
        widen(c->kind, (const uint16_t *)c->from + first, (float *)c->to + first, last - first);
    }
}

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
        Conversion c = {from.buf, to.buf, kind, narrows};
        Py_BEGIN_ALLOW_THREADS
        in_parts(convert_part, &c, (size_t)count, CACHED);
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
