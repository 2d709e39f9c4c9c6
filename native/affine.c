/* Affine quantization, as tensorstash.kernels.quantize defines it, of what is computed in float32.
 *
 * Groups of one size are worked on in batches, which stay in the first cache from their extremes to their codes. */

#include "grids.h"
#include "tables.h"

enum {
    USUAL = 128,  /* elements of a group, unless a user says otherwise */
    PER_BYTE = 4, /* codes, at most */
};

/* How a tensor is cut, and where the sections of its payload are. */
typedef struct {
    Kind kind;
    int bits;
    size_t rows, length, size;
    uint8_t *scales, *lows, *packed;
} Plan;

static size_t
smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Call a function for every batch of some rows: groups of one size, or, where they are larger than a batch, a single
 * one. */
typedef void Work(void *of, size_t at, size_t group, size_t groups, size_t size);

static void
each_batch(const Plan *plan, Work *work, void *of)
{
    fenv_t before;
    const int has_mode = default_mode(&before);
    size_t size = plan->size, most = size < BATCH / MOST ? MOST : size < BATCH ? BATCH / size : 1;
    size_t rows = plan->rows, whole = plan->length / size, rest = plan->length % size;
    size_t at = 0, group = 0;
    if (rest == 0) {
        whole *= rows;
        rows = 1;
    }
    for (size_t row = 0; row < rows; row++) {
        for (size_t done = 0, some; done < whole; done += some) {
            some = smaller(whole - done, most);
            work(of, at, group, some, size);
            at += some * size;
            group += some;
        }
        if (rest) {
            work(of, at, group, 1, rest);
            at += rest;
            group += 1;
        }
    }
    if (has_mode) {
        fesetenv(&before);
    }
}

typedef struct {
    Plan plan;
    const void *source;
    bool stochastic;
    uint32_t seed;
    uint8_t codes[BATCH + PER_BYTE]; /* that are not packed yet */
    size_t waiting;
    uint8_t *last; /* byte of the payload */
} Encoder;

static const float *
load(const Encoder *e, size_t at, size_t count, float *memory)
{
    if (e->plan.kind == FLOAT32) {
        return (const float *)e->source + at;
    }
    widen(e->plan.kind, (const uint16_t *)e->source + at, memory, count);
    return memory;
}

INLINE void
encode_piece(Encoder *e, const float *values, size_t at, size_t groups, size_t size, const Grids *grids)
{
    float held[BATCH];
    int bits = e->plan.bits;
    const float *rounded = values;
    uint8_t *codes = bits == 8 ? e->plan.packed + at : e->codes + e->waiting;
    if (grids->any_odd) {
        hold(values, groups, size, grids, held);
        rounded = held;
    }
    if (e->stochastic) {
        stochastic(rounded, groups, size, grids, e->seed, at, codes);
    }
    else {
        nearest(rounded, groups, size, grids, codes);
        if (bits < 8) {
            if (grids->any_odd) {
                spread_specials(groups, size, grids, bits, codes);
            }
            coarsen(codes, groups * size, bits);
        }
    }
    if (grids->any_odd) {
        mark_specials(values, groups, size, grids, bits, codes);
    }
    if (bits < 8) {
        size_t all = e->waiting + groups * size, per_byte = (size_t)(8 / bits), bytes = all / per_byte;
        pack_codes(e->codes, bits, e->plan.packed + (at - e->waiting) / per_byte, bytes);
        e->waiting = all % per_byte;
        memcpy(e->codes, e->codes + bytes * per_byte, e->waiting);
    }
}

INLINE void
encode_groups(Encoder *e, size_t at, size_t group, size_t groups, size_t size)
{
    float memory[BATCH];
    const float *values = memory;
    Grids grids;
    for (size_t g = 0; g < groups; g++) {
        grids.lowest[g] = INT32_MAX;
        grids.highest[g] = INT32_MIN;
    }
    size_t part = smaller(size, BATCH);
    for (size_t done = 0; done < size; done += part) {
        size_t here = smaller(size - done, part);
        values = load(e, at + done, groups * here, memory);
        extremes(values, groups, here, &grids);
    }
    find_odd(groups, &grids);
    for (size_t done = 0; grids.any_odd && done < size; done += part) {
        size_t here = smaller(size - done, part);
        values = load(e, at + done, groups * here, memory);
        odd_extremes(values, groups, here, &grids);
    }
    finish(groups, e->plan.bits, e->stochastic, &grids);
    memcpy(e->plan.scales + 4 * group, grids.scale, 4 * groups);
    memcpy(e->plan.lows + 4 * group, grids.low, 4 * groups);
    for (size_t done = 0; done < size; done += part) {
        size_t here = smaller(size - done, part);
        if (part < size) {
            values = load(e, at + done, groups * here, memory);
        }
        encode_piece(e, values, at + done, groups, here, &grids);
    }
}

EACH_WIDTH static void
encode_batch(void *of, size_t at, size_t group, size_t groups, size_t size)
{
    if (size == USUAL) {
        encode_groups(of, at, group, groups, USUAL);
    }
    else {
        encode_groups(of, at, group, groups, size);
    }
}

/* Each part has what waits to be packed to itself; only the last leaves any, in the last byte. */
typedef struct {
    Plan plan;
    void *target;
} Decoder;

INLINE void
decode_piece(const Decoder *d, size_t at, size_t groups, size_t size, const Grids *grids)
{
    float memory[BATCH];
    uint8_t unpacked[BATCH + 2 * PER_BYTE];
    size_t count = groups * size;
    int bits = d->plan.bits;
    const uint8_t *codes = d->plan.packed + at;
    if (bits < 8) {
        size_t per_byte = (size_t)(8 / bits), first = at / per_byte, end = (at + count + per_byte - 1) / per_byte;
        unpack_codes(d->plan.packed + first, bits, unpacked, end - first);
        codes = unpacked + at % per_byte;
    }
    float *values = d->plan.kind == FLOAT32 ? (float *)d->target + at : memory;
    interpolate(codes, groups, size, grids, values);
    restore_specials(codes, groups, size, grids, bits, values);
    if (d->plan.kind != FLOAT32) {
        narrow(d->plan.kind, values, (uint16_t *)d->target + at, count);
    }
}

EACH_WIDTH static void
decode_batch(void *of, size_t at, size_t group, size_t groups, size_t size)
{
    const Decoder *d = of;
    Grids grids;
    memcpy(grids.scale, d->plan.scales + 4 * group, 4 * groups);
    memcpy(grids.low, d->plan.lows + 4 * group, 4 * groups);
    size_t part = smaller(size, BATCH);
    for (size_t done = 0; done < size; done += part) {
        decode_piece(d, at + done, groups, smaller(size - done, part), &grids);
    }
}

/* ---- for Python ---- */

/* Take the elements and the payload of a call, and their plan; return whether they are there. Whether their sizes are
 * those of the plan, an error tells. */
static bool
parse(PyObject *args, const char *format, Py_buffer *from, Py_buffer *to, bool encodes, Plan *plan, long long *seed)
{
    const char *dtype;
    int bits;
    Py_ssize_t rows, length, size;
    if (!PyArg_ParseTuple(args, format, from, to, &dtype, &rows, &length, &size, &bits, seed)) {
        return false;
    }
    const Py_buffer *const elements = encodes ? from : to, *const body = encodes ? to : from;
    plan->kind = kind_of(dtype);
    if (plan->kind == OTHER) {
        PyErr_Format(PyExc_ValueError, "got elements of %s, expected float32, float16 or bfloat16", dtype);
        return true;
    }
    if ((bits != 2 && bits != 4 && bits != 8) || rows < 0 || length < 1 || size < 1) {
        PyErr_SetString(PyExc_ValueError, "expected 2, 4 or 8 bits, and rows of groups");
        return true;
    }
    size_t width = plan->kind == FLOAT32 ? 4 : 2, nbytes = (size_t)elements->len, count = nbytes / width;
    size_t per_row = (size_t)((length - 1) / size + 1), table = 4 * per_row * (size_t)rows;
    size_t expected = 2 * table + (count * (size_t)bits + 7) / 8;
    if (nbytes % width || (uintptr_t)elements->buf % width) {
        PyErr_SetString(PyExc_ValueError, "expected whole elements at an address that is a multiple of their size");
    }
    else if (count % (size_t)length || count / (size_t)length != (size_t)rows) {
        PyErr_Format(PyExc_ValueError, "got %zu elements, expected %zd rows of %zd", count, rows, length);
    }
    else if ((size_t)body->len != expected) {
        PyErr_Format(PyExc_ValueError, "got a payload of %zd bytes, expected %zu", body->len, expected);
    }
    else {
        plan->bits = bits;
        plan->size = (size_t)size;
        plan->length = (size_t)(length % size ? length : size); /* a row of whole groups is as many rows of one */
        plan->rows = count / plan->length;
        plan->scales = body->buf;
        plan->lows = plan->scales + table;
        plan->packed = plan->lows + table;
    }
    return true;
}

static PyObject *
affine_encode(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer source, body;
    long long seed;
    Encoder e = {0};
    if (!parse(args, "y*w*s(nnn)iL:affine_encode", &source, &body, true, &e.plan, &seed)) {
        return NULL;
    }
    if (!PyErr_Occurred()) {
        Py_BEGIN_ALLOW_THREADS
        e.source = source.buf;
        e.stochastic = seed >= 0;
        e.seed = (uint32_t)seed;
        e.last = (uint8_t *)body.buf + body.len - 1;
        each_batch(&e.plan, encode_batch, &e);
        if (e.waiting) {
            memset(e.codes + e.waiting, 0, PER_BYTE);
            pack_codes(e.codes, e.plan.bits, e.last, 1);
        }
        Py_END_ALLOW_THREADS
    }
    return released(&source, &body, NULL) ? Py_NewRef(Py_None) : NULL;
}

static PyObject *
affine_decode(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer body, target;
    Decoder d = {0};
    if (!parse(args, "y*w*s(nnn)i:affine_decode", &body, &target, false, &d.plan, NULL)) {
        return NULL;
    }
    if (!PyErr_Occurred()) {
        Py_BEGIN_ALLOW_THREADS
        d.target = target.buf;
        each_batch(&d.plan, decode_batch, &d);
        Py_END_ALLOW_THREADS
    }
    return released(&body, &target, NULL) ? Py_NewRef(Py_None) : NULL;
}

PyMethodDef affine_functions[] = {
    {"affine_encode", affine_encode, METH_VARARGS,
     "affine_encode(source, body, dtype, groups, bits, seed)\n\nQuantize floats: fill the body of a payload."},
    {"affine_decode", affine_decode, METH_VARARGS,
     "affine_decode(body, target, dtype, groups, bits)\n\nFill floats from the body of a payload."},
    {NULL, NULL, 0, NULL},
};
