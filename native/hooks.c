/* What runs for every saved tensor, most of which are kept: the same steps as in Python, without its frames.
 *
 * Whatever is out of the ordinary is left to the function in Python that each of these stands for.
 *
 * Every call may run code of anybody's, which may come back here with the same handle: what is needed after a call is
 * held before it. */

#include "tables.h"

/* -- Functions of one argument whose `self` is a tuple of what they need: arguments, then names of attributes -- */

#define PART(index) PyTuple_GET_ITEM(self, index)

static PyObject *
function(PyMethodDef *method, PyObject *args, Py_ssize_t count, const char *const *names, Py_ssize_t name_count)
{
    if (PyTuple_GET_SIZE(args) != count) {
        return PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", count, PyTuple_GET_SIZE(args));
    }
    PyObject *const self = PyTuple_New(count + name_count);
    for (Py_ssize_t i = 0; self != NULL && i < count + name_count; i++) {
        PyObject *const item =
            i < count ? Py_NewRef(PyTuple_GET_ITEM(args, i)) : PyUnicode_InternFromString(names[i - count]);
        if (item == NULL) {
            Py_DECREF(self);
            return NULL;
        }
        PyTuple_SET_ITEM(self, i, item);
    }
    PyObject *const made = self == NULL ? NULL : PyCFunction_New(method, self);
    Py_XDECREF(self);
    return made;
}

/* -- tensorstash.engine.session: Session.pack -- */

enum { SMALL, MIN_BYTES, LARGE, NBYTES, STATE, ALIAS, VERSION, PACK, KEEP_COUNT };

static int
count_step(PyObject *counters, PyObject *nbytes)
{
    PyObject *const counter = PyObject_GetItem(counters, nbytes);
    PyObject *const step = counter == NULL ? NULL : PyIter_Next(counter);
    Py_XDECREF(counter);
    Py_XDECREF(step);
    return step == NULL ? -1 : 0;
}

/* Return the handle of a tensor that is kept whatever it is, or NULL without an exception for all others. */
static PyObject *
kept_anyway(PyObject *self, PyObject *tensor)
{
    PyObject *const nbytes = PyObject_CallOneArg(PART(NBYTES), tensor);
    if (nbytes == NULL) {
        if (PyErr_ExceptionMatches(PyExc_RuntimeError)) { /* sparse tensors have no such number */
            PyErr_Clear();
        }
        return NULL;
    }
    const Py_ssize_t known = PyLong_AsSsize_t(nbytes);
    PyObject *const counters = PART(known > 0 && known < PyLong_AsSsize_t(PART(MIN_BYTES)) ? SMALL : LARGE);
    if (counters == Py_None || known <= 0) {
        Py_DECREF(nbytes);
        return NULL;
    }
    const int counted = count_step(counters, nbytes);
    Py_DECREF(nbytes);
    if (counted < 0) { /* no counter for so many bytes, or one that is used up: it is not kept whatever it is */
        if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_KeyError)) {
            PyErr_Clear();
        }
        return NULL;
    }
    PyObject *const version = PyObject_CallOneArg(PART(VERSION), tensor);
    PyObject *const alias = version == NULL ? NULL : PyObject_CallOneArg(PART(ALIAS), tensor);
    PyObject *const kept = alias == NULL ? NULL : PyTuple_Pack(3, PART(STATE), alias, version);
    Py_XDECREF(version);
    Py_XDECREF(alias);
    if (kept != NULL) {
        /* The garbage collector would run more often for them, and nothing that they refer to knows of handles. */
        PyObject_GC_UnTrack(kept);
    }
    return kept;
}

static PyObject *
keep(PyObject *self, PyObject *tensor)
{
    PyObject *const handle = kept_anyway(self, tensor);
    return handle != NULL || PyErr_Occurred() ? handle : PyObject_CallOneArg(PART(PACK), tensor);
}

static PyMethodDef keep_method = {"pack", keep, METH_O, NULL};

static PyObject *
keeping(PyObject *Py_UNUSED(module), PyObject *args)
{
    return function(&keep_method, args, KEEP_COUNT, NULL, 0);
}

/* -- tensorstash.engine.handle: restore -- */

enum { RESTORE, RESTORE_COUNT, VERSION_NAME = RESTORE_COUNT, ASKED_NAME };

static const char *const restore_names[] = {"version", "was_asked"};

static PyObject *
restore(PyObject *self, PyObject *handle)
{
    if (!PyTuple_CheckExact(handle) || PyTuple_GET_SIZE(handle) != 3) {
        return PyObject_CallOneArg(PART(RESTORE), handle);
    }
    Py_INCREF(handle);
    PyObject *const state = PyTuple_GET_ITEM(handle, 0), *const alias = PyTuple_GET_ITEM(handle, 1), *tensor = NULL;
    PyObject *const function = PyObject_GetAttr(state, PART(VERSION_NAME));
    PyObject *const now = function == NULL ? NULL : PyObject_CallOneArg(function, alias);
    const int is_same = now == NULL ? -1 : PyObject_RichCompareBool(now, PyTuple_GET_ITEM(handle, 2), Py_EQ);
    Py_XDECREF(function);
    Py_XDECREF(now);
    if (is_same > 0) {
        tensor = PyObject_SetAttr(state, PART(ASKED_NAME), Py_True) < 0 ? NULL : Py_NewRef(alias);
    }
    else if (is_same == 0) {
        tensor = PyObject_CallOneArg(PART(RESTORE), handle);
    }
    Py_DECREF(handle);
    return tensor;
}

static PyMethodDef restore_method = {"unpack", restore, METH_O, NULL};

static PyObject *
restoring(PyObject *Py_UNUSED(module), PyObject *args)
{
    return function(&restore_method, args, RESTORE_COUNT, restore_names, 2);
}

/* -- tensorstash.backends.paddle.packed: pair_for_paddle -- */

/* Not for speed alone: an interrupt that is raised where a function of Python begins would go through Paddle's C++ from
 * there. Here it is what the functions called have raised, and is handled. */

enum { INNERMOST, BOX, UNHOOKED, NOT_PACKED, PACK_COUNT, READY_NAME = PACK_COUNT, PACK_NAME };

static const char *const pack_names[] = {"ready", "pack"};

/* Call a function with what has been raised, which it takes care of. */
static PyObject *
handled(PyObject *function, PyObject *first)
{
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    if (trace != NULL) {
        PyException_SetTraceback(error, trace);
    }
    PyObject *const result = first == NULL ? PyObject_CallOneArg(function, error)
                                           : PyObject_CallFunctionObjArgs(function, first, error, NULL);
    Py_XDECREF(kind);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return result;
}

/* What `pack` does is none of the hooks' business: the scope is not ready until it has returned. */
static PyObject *
pack_in(PyObject *self, PyObject *scope, PyObject *tensor)
{
    PyObject *const pack = PyObject_GetAttr(scope, PART(PACK_NAME));
    if (pack == NULL || PyObject_SetAttr(scope, PART(READY_NAME), Py_False) < 0) {
        Py_XDECREF(pack);
        return NULL;
    }
    PyObject *const value = PyObject_CallOneArg(pack, tensor);
    PyObject *const pair = value == NULL ? NULL : PyTuple_Pack(2, scope, value);
    PyObject *packed = pair == NULL ? NULL : PyObject_CallOneArg(PART(BOX), pair);
    Py_DECREF(pack);
    Py_XDECREF(value);
    Py_XDECREF(pair);
    if (packed != NULL && PyObject_SetAttr(scope, PART(READY_NAME), Py_True) < 0) {
        Py_CLEAR(packed);
    }
    return packed;
}

static PyObject *
pack_for_paddle(PyObject *self, PyObject *tensor)
{
    PyObject *const thread = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
    if (thread == NULL) {
        return NULL;
    }
    PyObject *const scope = Py_XNewRef(PyDict_GetItemWithError(PART(INNERMOST), thread));
    Py_DECREF(thread);
    PyObject *const ready = scope == NULL ? NULL : PyObject_GetAttr(scope, PART(READY_NAME));
    if (ready == NULL && PyErr_Occurred()) {
        Py_XDECREF(scope);
        return NULL;
    }
    Py_XDECREF(ready);
    PyObject *packed;
    if (ready != Py_True || tensor == Py_None) {
        packed = PyObject_CallOneArg(PART(UNHOOKED), tensor);
    }
    else if ((packed = pack_in(self, scope, tensor)) == NULL) {
        packed = handled(PART(NOT_PACKED), scope);
    }
    Py_XDECREF(scope);
    return packed;
}

static PyMethodDef pack_method = {"pack_for_paddle", pack_for_paddle, METH_O, NULL};

static PyObject *
packing(PyObject *Py_UNUSED(module), PyObject *args)
{
    return function(&pack_method, args, PACK_COUNT, pack_names, 2);
}

enum { OF_BOX, UNBOXED, HOOK_FAILED, BACKWARDS, WITH_MEMORY, UNPACK_COUNT };
enum { CONTENTS_NAME = UNPACK_COUNT, UNPACK_NAME, RELEASE_NAME, INITIALIZED_NAME };

static const char *const unpack_names[] = {"cell_contents", "unpack", "release", "_is_initialized"};

/* Return the tensor, whose reference is taken over, or what stands in for one without memory. */
static PyObject *
with_memory(PyObject *self, PyObject *tensor)
{
    PyObject *const has_memory = PyObject_CallMethodNoArgs(tensor, PART(INITIALIZED_NAME));
    Py_XDECREF(has_memory);
    if (has_memory == Py_True) {
        return tensor;
    }
    PyObject *const stand_in = has_memory == NULL ? NULL : PyObject_CallOneArg(PART(WITH_MEMORY), tensor);
    Py_DECREF(tensor);
    return stand_in;
}

static PyObject *
unpack_for_paddle(PyObject *self, PyObject *packed)
{
    if ((PyObject *)Py_TYPE(packed) != PART(OF_BOX)) {
        return PyObject_CallOneArg(PART(UNBOXED), packed);
    }
    PyObject *scope, *value, *unpack = NULL, *tensor = NULL;
    PyObject *const contents = PyObject_GetAttr(packed, PART(CONTENTS_NAME)); /* an error if it is empty */
    if (contents != NULL && PyTuple_Check(contents) && PyArg_ParseTuple(contents, "OO", &scope, &value)) {
        unpack = PyObject_GetAttr(scope, PART(UNPACK_NAME));
        tensor = unpack == NULL ? NULL : PyObject_CallOneArg(unpack, value);
    }
    else if (!PyErr_Occurred()) {
        PyErr_Format(PyExc_TypeError, "expected what pack has returned, got a cell of %R", contents);
    }
    Py_XDECREF(unpack);
    Py_XDECREF(contents);
    PyObject *const release = tensor == NULL ? NULL : PyObject_GetAttr(PART(BACKWARDS), PART(RELEASE_NAME));
    if (release == NULL || (release == Py_True && PyObject_DelAttr(packed, PART(CONTENTS_NAME)) < 0)) {
        Py_CLEAR(tensor);
    }
    Py_XDECREF(release);
    tensor = tensor == NULL ? NULL : with_memory(self, tensor);
    return tensor != NULL ? tensor : handled(PART(HOOK_FAILED), NULL);
}

static PyMethodDef unpack_method = {"unpack_for_paddle", unpack_for_paddle, METH_O, NULL};

static PyObject *
unpacking(PyObject *Py_UNUSED(module), PyObject *args)
{
    return function(&unpack_method, args, UNPACK_COUNT, unpack_names, 4);
}

PyMethodDef hooks_functions[] = {
    {"keeping", keeping, METH_VARARGS, "See tensorstash.host.native."},
    {"restoring", restoring, METH_VARARGS, "See tensorstash.host.native."},
    {"packing", packing, METH_VARARGS, "See tensorstash.host.native."},
    {"unpacking", unpacking, METH_VARARGS, "See tensorstash.host.native."},
    {NULL, NULL, 0, NULL},
};
