/* One bit per element: booleans, and which of two values it is, as tensorstash.kernels.masks defines it. */

#include <stdatomic.h>

#include "tables.h"
#include "team.h"
#include "words.h"

/* Elements at a time: a multiple of 8 whose flags stay in the cache; and of a part, which is whole runs. */
enum { RUN = 1024, PART = 256 * RUN };

/* In place of a size: bytes that are 0 or 1, which are flags themselves. */
enum { FLAGS = 0 };

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
flag_second(const char *run, Py_ssize_t count, int size, uint64_t first, uint64_t second, uint8_t *flags)
{
    uint8_t third = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        uint64_t word = get_word(run, i, size);
        uint8_t not_first = differ(word, first, size), not_second = differ(word, second, size);
        flags[i] = not_first;
        third |= not_first & not_second;
    }
    return third;
}

/* What the threads of a team do at once. Once a part has found that it cannot be done, the others are left out. */
typedef struct {
    const Py_buffer *words, *packed;
    int size; /* of a word, or FLAGS */
    uint64_t first, second;
    atomic_int failed;
} Masks;

typedef void Sized(Masks *m, Py_ssize_t from, Py_ssize_t to, int size);

/* Call a function with a size that is a constant there. */
INLINE void
by_size(Sized *each, Masks *m, Py_ssize_t from, Py_ssize_t to)
{
    switch (m->size) {
    case FLAGS: each(m, from, to, FLAGS); break;
    case 1: each(m, from, to, 1); break;
    case 2: each(m, from, to, 2); break;
    case 4: each(m, from, to, 4); break;
    default: each(m, from, to, 8); break;
    }
}

/* Find the first element, and the first that differs from it, or that one again where none does. */
INLINE void
each_find(Masks *m, Py_ssize_t from, Py_ssize_t to, int size)
{
    const char *words = m->words->buf;
    const uint64_t first = from < to ? get_word(words, from, size) : 0;
    Py_ssize_t start = from;
    for (uint8_t none = 1, flags[RUN]; start < to && none; start += none ? RUN : 0) {
        Py_ssize_t here = to - start < RUN ? to - start : RUN;
        none = !flag_second(words + start * size, here, size, first, first, flags);
    }
    while (start < to - 1 && get_word(words, start, size) == first) { /* bounded: others may write meanwhile */
        start++;
    }
    m->first = first;
    m->second = start < to ? get_word(words, start, size) : first;
}

EACH_WIDTH static void
find_two(Masks *m, Py_ssize_t count)
{
    by_size(each_find, m, 0, count);
}

/* Whether any byte is more than 1. */
INLINE uint8_t
any_more(const uint8_t *flags, Py_ssize_t count)
{
    uint8_t all = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        all |= flags[i];
    }
    return all > 1;
}

INLINE void
each_pack(Masks *m, Py_ssize_t from, Py_ssize_t to, int size)
{
    const char *words = m->words->buf;
    uint8_t *packed = m->packed->buf;
    const uint64_t first = m->first, second = m->second;
    for (Py_ssize_t start = from; start < to && !m->failed; start += RUN) {
        Py_ssize_t here = to - start < RUN ? to - start : RUN;
        uint8_t made[RUN];
        const uint8_t *flags = size == FLAGS ? (const uint8_t *)words + start : made;
        if (size == FLAGS ? any_more(flags, here)
                          : flag_second(words + start * size, here, size, first, second, made)) {
            m->failed = 1;
        }
        pack_run(flags, here, packed + start / 8);
    }
}

EACH_WIDTH static void
pack_part(void *of, size_t first, size_t last)
{
    by_size(each_pack, of, (Py_ssize_t)first, (Py_ssize_t)last);
}

INLINE void
each_unpack(Masks *m, Py_ssize_t from, Py_ssize_t to, int size)
{
    char *words = m->words->buf;
    const uint8_t *packed = m->packed->buf;
    const uint64_t second = m->second, change = second ^ m->first;
    for (Py_ssize_t start = from; start < to; start += RUN) {
        Py_ssize_t here = to - start < RUN ? to - start : RUN;
        uint8_t made[RUN], *const flags = size == FLAGS ? (uint8_t *)words + start : made;
        unpack_run(packed + start / 8, here, flags);
        for (Py_ssize_t i = 0; size != FLAGS && i < here; i++) {
            put_word(words + start * size, i, size, second ^ (change & ((uint64_t)flags[i] - 1)));
        }
    }
}

EACH_WIDTH static void
unpack_part(void *of, size_t first, size_t last)
{
    by_size(each_unpack, of, (Py_ssize_t)first, (Py_ssize_t)last);
}

/* Whether there is one bit for each word, and a pair of them, or for each byte where there is none; else an error is
 * set. */
static int
are_of_two(const Py_buffer *words, const Py_buffer *pair, const Py_buffer *packed)
{
    Py_ssize_t size = pair == NULL ? 1 : words->itemsize;
    if (!is_word(size) || (pair != NULL && pair->len != 2 * size) || words->len % size
        || packed->len != packed_bytes(words->len / size)) {
        PyErr_SetString(PyExc_ValueError, "expected words of 1, 2, 4 or 8 bytes, two of them, and one bit for each");
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
    if (are_of_two(&flags, NULL, &packed)) {
        Py_BEGIN_ALLOW_THREADS
        Masks m = {.words = &flags, .packed = &packed, .size = FLAGS};
        in_parts(pack_part, &m, (size_t)flags.len, PART);
        done = !m.failed;
        Py_END_ALLOW_THREADS
    }
    return released(&flags, &packed, NULL) ? PyBool_FromLong(done) : NULL;
}

static PyObject *
unpack_booleans(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer packed, flags;
    if (!PyArg_ParseTuple(args, "y*w*:unpack_booleans", &packed, &flags)) {
        return NULL;
    }
    if (are_of_two(&flags, NULL, &packed)) {
        Py_BEGIN_ALLOW_THREADS
        Masks m = {.words = &flags, .packed = &packed, .size = FLAGS};
        in_parts(unpack_part, &m, (size_t)flags.len, PART);
        Py_END_ALLOW_THREADS
    }
    return released(&packed, &flags, NULL) ? Py_NewRef(Py_None) : NULL;
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
        Masks m = {.words = &words, .packed = &packed, .size = (int)words.itemsize};
        find_two(&m, words.len / m.size);
        put_word(pair.buf, 0, m.size, m.first);
        put_word(pair.buf, 1, m.size, m.second);
        in_parts(pack_part, &m, (size_t)(words.len / m.size), PART);
        done = !m.failed;
        Py_END_ALLOW_THREADS
    }
    return released(&words, &pair, &packed) ? PyBool_FromLong(done) : NULL;
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
        Masks m = {.words = &words, .packed = &packed, .size = (int)words.itemsize};
        m.first = get_word(pair.buf, 0, m.size);
        m.second = get_word(pair.buf, 1, m.size);
        in_parts(unpack_part, &m, (size_t)(words.len / m.size), PART);
        Py_END_ALLOW_THREADS
    }
    return released(&packed, &pair, &words) ? Py_NewRef(Py_None) : NULL;
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
