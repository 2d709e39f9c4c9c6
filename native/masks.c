/* One bit per element, as tensorstash.codecs.pack_bits and tensorstash.codecs.two_valued define it. */

#include "simd.h"
#include "tables.h"
#include "words.h"

/* Elements at a time: a multiple of 8 whose flags stay in the cache. */
enum { RUN = 1024 };

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

#define TWO_OF(N) \
    EACH_WIDTH static int pack_two_##N(const word##N *words, Py_ssize_t count, word##N *pair, uint8_t *packed) \
    { \
        const word##N first = count ? words[0] : 0; \
        word##N second = first; \
        for (Py_ssize_t start = 0; start < count; start += RUN) { \
            const word##N *run = words + start; \
            Py_ssize_t here = count - start < RUN ? count - start : RUN; \
            uint8_t differs[RUN], third = 0; \
            for (Py_ssize_t i = 0; i < here; i++) { \
                uint8_t not_first = run[i] != first; \
                uint8_t not_second = run[i] != second; \
                differs[i] = not_first; \
                third |= not_first & not_second; \
            } \
            if (third && second == first) { \
                Py_ssize_t place = 0; \
                while (place < here - 1 && run[place] == first) { /* bounded: others may write meanwhile */ \
                    place++; \
                } \
                second = run[place]; \
                third = 0; \
                for (Py_ssize_t i = place; i < here; i++) { \
                    third |= (run[i] != first) & (run[i] != second); \
                } \
            } \
            if (third) { \
                return 0; \
            } \
            pack_run(differs, here, packed + start / 8); \
        } \
        pair[0] = first; \
        pair[1] = second; \
        return 1; \
    } \
\
    EACH_WIDTH static void unpack_two_##N(const uint8_t *packed, const word##N *pair, word##N *words, Py_ssize_t count) \
    { \
        const word##N first = pair[0], change = pair[0] ^ pair[1]; \
        for (Py_ssize_t start = 0; start < count; start += RUN) { \
            Py_ssize_t here = count - start < RUN ? count - start : RUN; \
            uint8_t flags[RUN]; \
            unpack_run(packed + start / 8, here, flags); \
            for (Py_ssize_t i = 0; i < here; i++) { \
                words[start + i] = (word##N)(first ^ (change & -(word##N)flags[i])); \
            } \
        } \
    }

TWO_OF(1)
TWO_OF(2)
TWO_OF(4)
TWO_OF(8)

static PyObject *
pack_booleans(PyObject *module, PyObject *args)
{
    Py_buffer flags, packed;
    int done = 0;
    if (!PyArg_ParseTuple(args, "y*w*:pack_booleans", &flags, &packed)) {
        return NULL;
    }
    if (packed.len != flags.len / 8 + (flags.len % 8 != 0)) {
        PyErr_SetString(PyExc_ValueError, "expected one bit for each byte");
    }
    else {
        Py_BEGIN_ALLOW_THREADS
        done = pack_flags(flags.buf, flags.len, packed.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&flags);
    PyBuffer_Release(&packed);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(done);
}

static PyObject *
unpack_booleans(PyObject *module, PyObject *args)
{
    Py_buffer packed, flags;
    if (!PyArg_ParseTuple(args, "y*w*:unpack_booleans", &packed, &flags)) {
        return NULL;
    }
    if (packed.len != flags.len / 8 + (flags.len % 8 != 0)) {
        PyErr_SetString(PyExc_ValueError, "expected one bit for each byte");
    }
    else {
        Py_BEGIN_ALLOW_THREADS
        unpack_flags(packed.buf, flags.len, flags.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&packed);
    PyBuffer_Release(&flags);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* Whether a buffer of words fits a pair of them and one bit for each. */
static int
is_of_two(const Py_buffer *words, const Py_buffer *pair, const Py_buffer *packed)
{
    Py_ssize_t size = pair->len / 2;
    if ((size != 1 && size != 2 && size != 4 && size != 8) || pair->len % 2 || words->len % size
        || packed->len != words->len / size / 8 + (words->len / size % 8 != 0)) {
        PyErr_SetString(PyExc_ValueError, "expected two words of 1, 2, 4 or 8 bytes, and one bit for each word");
        return 0;
    }
    return 1;
}

static PyObject *
pack_two_values(PyObject *module, PyObject *args)
{
    Py_buffer words, pair, packed;
    int done = 0;
    if (!PyArg_ParseTuple(args, "y*w*w*:pack_two_values", &words, &pair, &packed)) {
        return NULL;
    }
    if (is_of_two(&words, &pair, &packed)) {
        Py_ssize_t count = words.len / (pair.len / 2);
        Py_BEGIN_ALLOW_THREADS
        switch (pair.len / 2) {
        case 1: done = pack_two_1(words.buf, count, pair.buf, packed.buf); break;
        case 2: done = pack_two_2(words.buf, count, pair.buf, packed.buf); break;
        case 4: done = pack_two_4(words.buf, count, pair.buf, packed.buf); break;
        case 8: done = pack_two_8(words.buf, count, pair.buf, packed.buf); break;
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&words);
    PyBuffer_Release(&pair);
    PyBuffer_Release(&packed);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(done);
}

static PyObject *
unpack_two_values(PyObject *module, PyObject *args)
{
    Py_buffer packed, pair, words;
    if (!PyArg_ParseTuple(args, "y*y*w*:unpack_two_values", &packed, &pair, &words)) {
        return NULL;
    }
    if (is_of_two(&words, &pair, &packed)) {
        Py_ssize_t count = words.len / (pair.len / 2);
        Py_BEGIN_ALLOW_THREADS
        switch (pair.len / 2) {
        case 1: unpack_two_1(packed.buf, pair.buf, words.buf, count); break;
        case 2: unpack_two_2(packed.buf, pair.buf, words.buf, count); break;
        case 4: unpack_two_4(packed.buf, pair.buf, words.buf, count); break;
        case 8: unpack_two_8(packed.buf, pair.buf, words.buf, count); break;
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&packed);
    PyBuffer_Release(&pair);
    PyBuffer_Release(&words);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

PyMethodDef masks_functions[] = {
    {"pack_booleans", pack_booleans, METH_VARARGS,
     "pack_booleans(flags, packed)\n\nWhether all bytes are 0 or 1; if so they are packed, at one bit each."},
    {"unpack_booleans", unpack_booleans, METH_VARARGS,
     "unpack_booleans(packed, flags)\n\nFill flags, one byte for each bit."},
    {"pack_two_values", pack_two_values, METH_VARARGS,
     "pack_two_values(words, pair, packed)\n\nWhether there are at most two values; if so fill them and the bits."},
    {"unpack_two_values", unpack_two_values, METH_VARARGS,
     "unpack_two_values(packed, pair, words)\n\nFill words with the first or the second of a pair, by bits."},
    {NULL, NULL, 0, NULL},
};
