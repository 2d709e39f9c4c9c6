/* The functions of every file here, as the one module offers them, and the types that they make. */

#ifndef TENSORSTASH_TABLES_H
#define TENSORSTASH_TABLES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyMethodDef affine_functions[];
extern PyMethodDef float_fields_functions[];
extern PyMethodDef floats_functions[];
extern PyMethodDef hooks_functions[];
extern PyMethodDef integers_functions[];
extern PyMethodDef masks_functions[];
extern PyMethodDef nonzero_functions[];
extern PyMethodDef team_functions[];

extern PyTypeObject BlockType;
extern PyTypeObject KeptType;

#endif
