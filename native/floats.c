/* Conversion between float32 and floats of 16 bits, as tensorstash.kernels.floats defines it. */

#include "floats.h"
#include "tables.h"
#include "team.h"

/* Elements that stay in the second cache, both as they were and as they will be. */
enum { CACHED = 65536 };

typedef enum { TO_BFLOAT16, TO_FLOAT16, FROM_BFLOAT16, FROM_FLOAT16 } Kind;

typedef struct {
    const void *from;
    void *to;
    Kind kind;
} Conversion;

static void
convert_part(void *of, size_t first, size_t last)
{
    const Conversion *c = of;
    size_t count = last - first;
    switch (c->kind) {
    case TO_BFLOAT16: narrow_bfloat16((const float *)c->from + first, (uint16_t *)c->to + first, count); break;
    case TO_FLOAT16: narrow_float16((const float *)c->from + first, (uint16_t *)c->to + first, count); break;
    case FROM_BFLOAT16: widen_bfloat16((const uint16_t *)c->from + first, (float *)c->to + first, count); break;
    case FROM_FLOAT16: widen_float16((const uint16_t *)c->from + first, (float *)c->to + first, count); break;
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
    int is_bfloat16 = strcmp(dtype, "bfloat16") == 0;
    Py_ssize_t from_bytes = narrows ? 4 : 2, to_bytes = narrows ? 2 : 4, count = from.len / from_bytes;
    if (!is_bfloat16 && strcmp(dtype, "float16") != 0) {
        PyErr_Format(PyExc_ValueError, "got %s, expected bfloat16 or float16", dtype);
    }
    else if (from.len % from_bytes || to.len % to_bytes || to.len / to_bytes != count
             || (uintptr_t)from.buf % (size_t)from_bytes || (uintptr_t)to.buf % (size_t)to_bytes) {
        PyErr_SetString(PyExc_ValueError, "expected as many words of 2 bytes as of 4, at multiples of their size");
    }
    else {
        Conversion c = {from.buf, to.buf, FROM_BFLOAT16};
        c.kind = narrows ? (is_bfloat16 ? TO_BFLOAT16 : TO_FLOAT16) : (is_bfloat16 ? FROM_BFLOAT16 : FROM_FLOAT16);
        Py_BEGIN_ALLOW_THREADS
        in_parts(convert_part, &c, (size_t)count, CACHED);
        Py_END_ALLOW_THREADS
    }
    return released(&from, &to, NULL) ? Py_NewRef(Py_None) : NULL;
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
    {"narrow_floats", narrow, METH_VARARGS,
     "narrow_floats(values, bits, dtype)\n\nFill words with float32 rounded to floats of 16 bits."},
    {"widen_floats", widen, METH_VARARGS,
     "widen_floats(bits, values, dtype)\n\nFill float32 with what words stand for."},
    {NULL, NULL, 0, NULL},
};
