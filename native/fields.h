/* What other files here need of fields.c. */

#ifndef TENSORSTASH_FIELDS_H
#define TENSORSTASH_FIELDS_H

#include "tables.h"

/* Whether floats of `size` bytes have a field of `width` bytes from bit `start` on; -1 is that of the sign. */
int is_field(Py_ssize_t size, int start, Py_ssize_t width);

/* Fill one such field of `count` floats. */
void cut_field(const void *floats, Py_ssize_t size, Py_ssize_t count, int start, Py_ssize_t width, void *field);

#endif
