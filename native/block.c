/* Code that no interrupt gets past: the same as in tensorstash.host.blocks, without its gap.
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

/* Call a function with what has been raised, which it takes care of. */
static PyObject *
handled(PyObject *function)
{
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    if (trace != NULL) {
        PyException_SetTraceback(error, trace);
    }
    PyObject *const result = PyObject_CallOneArg(function, error);
    Py_XDECREF(kind);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return result;
}

static PyObject *
call(PyObject *self, PyObject *argument)
{
    PyObject *const result = PyObject_CallOneArg(PyTuple_GET_ITEM(self, 0), argument);
    return result != NULL ? result : handled(PyTuple_GET_ITEM(self, 1));
}

static PyMethodDef call_method = {"guarded", call, METH_O, NULL};

static PyObject *
guarded(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *function, *handler;
    return PyArg_ParseTuple(args, "OO", &function, &handler) ? PyCFunction_New(&call_method, args) : NULL;
}

PyMethodDef block_functions[] = {
    {"guarded", guarded, METH_VARARGS, "See tensorstash.host.blocks."},
    {NULL, NULL, 0, NULL},
};
