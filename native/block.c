/* A block of code whose end no interrupt can prevent: the same as tensorstash.host.blocks.PythonBlock, without its gap.
 *
 * A signal handler runs where a function of Python begins, so that one may keep `__exit__` from doing anything. What is
 * called from here is made up for then. */

#include "tables.h"

enum { MOST_ATTEMPTS = 1000 };

/* After an error, which stays: call a method until it raises nothing. */
static PyObject *
made_up_for(PyObject *self, const char *name, PyObject *const *args, Py_ssize_t count)
{
    PyObject *kind, *error, *trace, *result = NULL;
    PyErr_Fetch(&kind, &error, &trace);
    for (int attempt = 0; result == NULL && attempt < MOST_ATTEMPTS; attempt++) {
        PyErr_Clear();
        PyObject *const method = PyObject_GetAttrString(self, name);
        result = method == NULL ? NULL : PyObject_Vectorcall(method, args, count, NULL);
        Py_XDECREF(method);
    }
    Py_XDECREF(result);
    PyErr_Restore(kind, error, trace);
    return NULL;
}

static PyObject *
block_enter(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *const entered = PyObject_CallMethod(self, "enter", NULL);
    return entered != NULL ? entered : made_up_for(self, "undo", NULL, 0);
}

static PyObject *
block_exit(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    PyObject *const leave = PyObject_GetAttrString(self, "leave");
    PyObject *const result = leave == NULL ? NULL : PyObject_Vectorcall(leave, args, count, NULL);
    Py_XDECREF(leave);
    return result != NULL ? result : made_up_for(self, "finish", args, count);
}

static PyMethodDef block_methods[] = {
    {"__enter__", block_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))block_exit, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

PyTypeObject BlockType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tensorstash.host._native.Block",
    .tp_basicsize = sizeof(PyObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_methods = block_methods,
    .tp_new = PyType_GenericNew,
    .tp_doc = "See tensorstash.host.blocks.",
};
