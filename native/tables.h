/* The functions of every file here, as the one module offers them, and a type. */

#ifndef TENSORSTASH_TABLES_H
#define TENSORSTASH_TABLES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyMethodDef affine_functions[];
extern PyMethodDef floats_functions[];
extern PyMethodDef block_functions[];

extern PyTypeObject BlockType;

/* Release the buffers of a call, of which there may be only two, and return whether no error is set. */
static inline int
released(Py_buffer *one, Py_buffer *other, Py_buffer *last)
{
    PyBuffer_Release(one);
    PyBuffer_Release(other);
    if (last != NULL) {
        PyBuffer_Release(last);
    }
    return !PyErr_Occurred();
}

#endif
