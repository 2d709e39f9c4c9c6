/* One bit per element: booleans, and which of two values it is, as tensorstash.kernels.masks defines it. */

#include <stdatomic.h>

#include "tables.h"
#include "team.h"
#include "words.h"

/* Elements at a time: a multiple of 8 whose flags stay in the cache; and of a part, which is whole runs. */
enum { RUN = 1024, PART = 256 * RUN };

EACH_WIDTH static int
pack_flags(const uint8_t *flags, Py_ssize_t count, uint8_t *packed)
{
    for (Py_ssize_t start = 0; start < count; start += RUN) {
        Py_ssize_t here = count - start < RUN ? count - start : RUN;
        uint8_t all = 0;
        for (Py_ssize_t i = 0; i < here; i++) {
            all |= flags[start + i];
        }
        if (all > 1) {
            return 0;
        }
        pack_run(flags + start, here, packed + start / 8);
    }
    return 1;
}

EACH_WIDTH static void
unpack_flags(const uint8_t *packed, Py_ssize_t count, uint8_t *flags)
{
    unpack_run(packed, count, flags);
}

/* Compared at their own width, as many fit into a vector. */
INLINE int
differ(uint64_t one, uint64_t other, int size)
{
    switch (size) {
    case 1: return (uint8_t)one != (uint8_t)other;
    case 2: return (uint16_t)one != (uint16_t)other;
    case 4: return (uint32_t)one != (uint32_t)other;
    default: return one != other;
    }
}

/* Flag the elements of a run that are not the first value, and return whether any is neither of the two. */
INLINE uint8_t
flag_second(const char *run, Py_ssize_t from, Py_ssize_t to, int size, uint64_t first, uint64_t second, uint8_t *flags)
{
    uint8_t third = 0;
    for (Py_ssize_t i = from; i < to; i++) {
        uint64_t word = get_word(run, i, size);
        uint8_t not_first = differ(word, first, size), not_second = differ(word, second, size);
        flags[i] = not_first;
        third |= not_first & not_second;
    }
    return third;
}

/* Return the first element that differs from the first of all, or that one where none does. */
INLINE uint64_t
each_second(const char *words, Py_ssize_t count, int size)
{
    const uint64_t first = count ? get_word(words, 0, size) : 0;
    Py_ssize_t start = 0;
    for (uint8_t none = 1, flags[RUN]; start < count && none; start += none ? RUN : 0) {
        Py_ssize_t here = count - start < RUN ? count - start : RUN;
        none = !flag_second(words + start * size, 0, here, size, first, first, flags);
    }
    while (start < count - 1 && get_word(words, start, size) == first) { /* bounded: others may write meanwhile */
        start++;
    }
    return start < count ? get_word(words, start, size) : first;
}

EACH_WIDTH static uint64_t
second_of(const char *words, Py_ssize_t count, int size)
{
    switch (size) {
    case 1: return each_second(words, count, 1);
    case 2: return each_second(words, count, 2);
    case 4: return each_second(words, count, 4);
    default: return each_second(words, count, 8);
    }
}

INLINE int
each_pack_two(const char *words, Py_ssize_t count, int size, uint64_t first, uint64_t second, uint8_t *packed)
{
    for (Py_ssize_t start = 0; start < count; start += RUN) {
        Py_ssize_t here = count - start < RUN ? count - start : RUN;
        uint8_t flags[RUN];
        if (flag_second(words + start * size, 0, here, size, first, second, flags)) {
            return 0;
        }
        pack_run(flags, here, packed + start / 8);
    }
    return 1;
}

EACH_WIDTH static int
pack_two(const char *words, Py_ssize_t count, int size, uint64_t first, uint64_t second, uint8_t *packed)
{
    switch (size) {
    case 1: return each_pack_two(words, count, 1, first, second, packed);
    case 2: return each_pack_two(words, count, 2, first, second, packed);
    case 4: return each_pack_two(words, count, 4, first, second, packed);
    default: return each_pack_two(words, count, 8, first, second, packed);
    }
}

INLINE void
each_unpack_two(const uint8_t *packed, const void *pair, char *words, Py_ssize_t count, int size)
{
    const uint64_t second = get_word(pair, 1, size), change = second ^ get_word(pair, 0, size);
    for (Py_ssize_t start = 0; start < count; start += RUN) {
        Py_ssize_t here = count - start < RUN ? count - start : RUN;
        uint8_t flags[RUN];
        unpack_run(packed + start / 8, here, flags);
        for (Py_ssize_t i = 0; i < here; i++) {
            put_word(words + start * size, i, size, second ^ (change & ((uint64_t)flags[i] - 1)));
        }
    }
}

EACH_WIDTH static void
unpack_two(const uint8_t *packed, const void *pair, char *words, Py_ssize_t count, int size)
{
    switch (size) {
    case 1: each_unpack_two(packed, pair, words, count, 1); break;
    case 2: each_unpack_two(packed, pair, words, count, 2); break;
    case 4: each_unpack_two(packed, pair, words, count, 4); break;
    default: each_unpack_two(packed, pair, words, count, 8); break;
    }
}

/* What the threads of a team do at once. Once a part has found that it cannot be done, the others are left out. */
typedef struct {
    const char *words;
    char *target;
    const uint8_t *bits;
    uint8_t *packed;
    const void *pair;
    int size;
    uint64_t first, second;
    atomic_int failed;
} Masks;

static void
pack_flags_part(void *of, size_t first, size_t last)
{
    Masks *m = of;
    if (!m->failed && !pack_flags((const uint8_t *)m->words + first, (Py_ssize_t)(last - first), m->packed + first / 8)) {
        m->failed = 1;
    }
}

static void
unpack_flags_part(void *of, size_t first, size_t last)
{
    Masks *m = of;
    unpack_flags(m->bits + first / 8, (Py_ssize_t)(last - first), (uint8_t *)m->target + first);
}

static void
pack_two_part(void *of, size_t first, size_t last)
{
    Masks *m = of;
    const char *words = m->words + first * (size_t)m->size;
    if (!m->failed
        && !pack_two(words, (Py_ssize_t)(last - first), m->size, m->first, m->second, m->packed + first / 8)) {
        m->failed = 1;
    }
}

static void
unpack_two_part(void *of, size_t first, size_t last)
{
    Masks *m = of;
    char *target = m->target + first * (size_t)m->size;
    unpack_two(m->bits + first / 8, m->pair, target, (Py_ssize_t)(last - first), m->size);
}

/* Whether there is one bit for each byte; else an error is set. */
static int
are_flags(const Py_buffer *flags, const Py_buffer *packed)
{
    if (packed->len != packed_bytes(flags->len)) {
        PyErr_SetString(PyExc_ValueError, "expected one bit for each byte");
        return 0;
    }
    return 1;
}

static PyObject *
pack_booleans(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer flags, packed;
    int done = 0;
    if (!PyArg_ParseTuple(args, "y*w*:pack_booleans", &flags, &packed)) {
        return NULL;
    }
    if (are_flags(&flags, &packed)) {
        Py_BEGIN_ALLOW_THREADS
        Masks m = {.words = flags.buf, .packed = packed.buf};
        in_parts(pack_flags_part, &m, (size_t)flags.len, PART);
        done = !m.failed;
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&flags);
    PyBuffer_Release(&packed);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(done);
}

static PyObject *
unpack_booleans(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer packed, flags;
    if (!PyArg_ParseTuple(args, "y*w*:unpack_booleans", &packed, &flags)) {
        return NULL;
    }
    if (are_flags(&flags, &packed)) {
        Py_BEGIN_ALLOW_THREADS
        Masks m = {.bits = packed.buf, .target = flags.buf};
        in_parts(unpack_flags_part, &m, (size_t)flags.len, PART);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&packed);
    PyBuffer_Release(&flags);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* Whether there is a pair of words, and one bit for each of them; else an error is set. */
static int
are_of_two(const Py_buffer *words, const Py_buffer *pair, const Py_buffer *packed)
{
    Py_ssize_t size = words->itemsize;
    if (!is_word(size) || pair->len != 2 * size || words->len % size
        || packed->len != packed_bytes(words->len / size)) {
        PyErr_SetString(PyExc_ValueError, "expected two words of 1, 2, 4 or 8 bytes, and one bit for each word");
        return 0;
    }
    return 1;
}

static PyObject *
pack_two_values(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer words, pair, packed;
    int done = 0;
    if (!PyArg_ParseTuple(args, "y*w*w*:pack_two_values", &words, &pair, &packed)) {
        return NULL;
    }
    if (are_of_two(&words, &pair, &packed)) {
        Py_BEGIN_ALLOW_THREADS
        Masks m = {.words = words.buf, .packed = packed.buf, .size = (int)words.itemsize};
        const Py_ssize_t count = words.len / words.itemsize;
        m.first = count ? get_word(words.buf, 0, m.size) : 0;
        m.second = second_of(words.buf, count, m.size);
        put_word(pair.buf, 0, m.size, m.first);
        put_word(pair.buf, 1, m.size, m.second);
        in_parts(pack_two_part, &m, (size_t)count, PART);
        done = !m.failed;
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&words);
    PyBuffer_Release(&pair);
    PyBuffer_Release(&packed);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(done);
}

static PyObject *
unpack_two_values(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer packed, pair, words;
    if (!PyArg_ParseTuple(args, "y*y*w*:unpack_two_values", &packed, &pair, &words)) {
        return NULL;
    }
    if (are_of_two(&words, &pair, &packed)) {
        Py_BEGIN_ALLOW_THREADS
        Masks m = {.bits = packed.buf, .pair = pair.buf, .target = words.buf, .size = (int)words.itemsize};
        in_parts(unpack_two_part, &m, (size_t)(words.len / words.itemsize), PART);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&packed);
    PyBuffer_Release(&pair);
    PyBuffer_Release(&words);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

PyMethodDef masks_functions[] = {
    {"pack_booleans", pack_booleans, METH_VARARGS,
     "pack_booleans(flags, packed)\n\nPack bytes at one bit each, if all are 0 or 1, and return whether they are."},
    {"unpack_booleans", unpack_booleans, METH_VARARGS,
     "unpack_booleans(packed, flags)\n\nFill flags, one byte for each bit."},
    {"pack_two_values", pack_two_values, METH_VARARGS,
     "pack_two_values(words, pair, packed)\n\nFill the pair and the bits of at most two values, and return whether there "
     "are no more."},
    {"unpack_two_values", unpack_two_values, METH_VARARGS,
     "unpack_two_values(packed, pair, words)\n\nFill words with the first or the second of a pair, by bits."},
    {NULL, NULL, 0, NULL},
};
