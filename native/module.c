/* tensorstash.host._native: what Python is too slow for. Optional: each function has an equal in Python or NumPy.
 *
 * Functions take contiguous buffers whose sizes they check, let go of the interpreter lock while they work on them, and
 * keep nothing of them. */

#include "tables.h"

static PyMethodDef *const tables[] = {
    affine_functions,
    floats_functions,
    block_functions,
};

static int
fill(PyObject *module)
{
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        if (PyModule_AddFunctions(module, tables[i]) < 0) {
            return -1;
        }
    }
    return PyModule_AddType(module, &BlockType);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, fill},
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "tensorstash.host._native",
    .m_doc = "What Python is too slow for; see tensorstash.host.native and tensorstash.kernels.",
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
