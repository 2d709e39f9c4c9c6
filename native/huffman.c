/* Bytes as frames of Zstandard (RFC 8878) that hold nothing but Huffman coded literals: what Zstandard makes of bytes
 * that hardly ever repeat in order, without the search for those that do. Any decoder of Zstandard reads them. */

#include "fields.h"
#include "simd.h"
#include "words.h"

enum { SYMBOLS = 256, LONGEST = 11 };

/* Sizes in bytes. A block below FEWEST is not worth a tree; a stream is written in words, up to SLACK beyond its end. */
enum { BLOCK = 1 << 17, FEWEST = 64, BLOCK_HEADER = 3, JUMPS = 6, MOST_OF_TREE = 128, FRAME_HEADER = 9, SLACK = 8 };

/* Kinds of a block; those of its literals and of its tree share their numbers with none of them. */
enum { RAW = 0, RUN = 1, CODED = 2 };

enum { WEIGHTS = LONGEST + 1, STATES_LOG = 6, STATES = 1 << STATES_LOG };

typedef struct {
    int kind;
    size_t nbytes;                /* of the body of the block: exact, but at most that much where it is coded */
    size_t tree_nbytes;
    uint8_t tree[MOST_OF_TREE];
    uint32_t codes[SYMBOLS];      /* the code, and its length in the lowest byte */
} Plan;

static void
count_symbols(const uint8_t *bytes, size_t size, uint32_t *counts)
{
    /* Several tables, as an increment has to wait for the last one of the same symbol. */
    enum { TABLES = 8 };
    uint32_t parts[TABLES][SYMBOLS] = {{0}};
    size_t whole = size - size % TABLES;
    for (size_t i = 0; i < whole; i += TABLES) {
        for (size_t k = 0; k < TABLES; k++) {
            parts[k][bytes[i + k]]++;
        }
    }
    for (size_t i = whole; i < size; i++) {
        parts[0][bytes[i]]++;
    }
    for (int s = 0; s < SYMBOLS; s++) {
        counts[s] = 0;
        for (int k = 0; k < TABLES; k++) {
            counts[s] += parts[k][s];
        }
    }
}

/* Fill `order` with the symbols that occur, the rarest first, and return how many there are. */
static int
sort_symbols(const uint32_t *counts, uint8_t *order)
{
    static const int gaps[] = {57, 23, 10, 4, 1};
    uint32_t keys[SYMBOLS];
    int used = 0;
    for (int s = 0; s < SYMBOLS; s++) {
        keys[used] = counts[s] << 8 | (uint32_t)s;
        used += counts[s] != 0;
    }
    for (size_t g = 0; g < sizeof gaps / sizeof *gaps; g++) {
        for (int i = gaps[g]; i < used; i++) {
            uint32_t key = keys[i];
            int k = i;
            for (; k >= gaps[g] && keys[k - gaps[g]] > key; k -= gaps[g]) {
                keys[k] = keys[k - gaps[g]];
            }
            keys[k] = key;
        }
    }
    for (int i = 0; i < used; i++) {
        order[i] = (uint8_t)keys[i];
    }
    return used;
}

/* Fill `lengths` with the bits of the best code for each symbol, 0 where it does not occur, and return the most. At
 * least two symbols occur. "Package-merge": see Larmore and Hirschberg, A fast algorithm for optimal length-limited
 * Huffman codes, 1990. */
static int
code_lengths(const uint32_t *counts, uint8_t *lengths)
{
    uint8_t order[SYMBOLS], is_symbol[LONGEST][2 * SYMBOLS];
    uint32_t lists[2][2 * SYMBOLS];
    int used = sort_symbols(counts, order), size = 0;
    for (int bit = 0; bit < LONGEST; bit++) {
        /* All symbols, and packages of two neighbours in the last list, the rarest first. */
        const uint32_t *last = lists[bit & 1];
        uint32_t *list = lists[~bit & 1];
        int symbol = 0, package = 0, packages = size / 2;
        for (size = 0; size < used + packages; size++) {
            uint32_t alone = symbol < used ? counts[order[symbol]] : UINT32_MAX;
            uint32_t together = package < packages ? last[2 * package] + last[2 * package + 1] : UINT32_MAX;
            int is_alone = alone <= together;
            list[size] = is_alone ? alone : together;
            is_symbol[bit][size] = (uint8_t)is_alone;
            symbol += is_alone;
            package += !is_alone;
        }
    }
    memset(lengths, 0, SYMBOLS);
    for (int bit = LONGEST - 1, taken = 2 * used - 2; bit >= 0; bit--) {
        int symbols = 0;
        for (int i = 0; i < taken; i++) {
            symbols += is_symbol[bit][i];
        }
        for (int i = 0; i < symbols; i++) {
            lengths[order[i]]++;
        }
        taken = 2 * (taken - symbols);
    }
    return lengths[order[0]];
}

/* The longest codes begin with the lowest numbers; equally long ones are in the order of their symbols. */
static void
assign_codes(const uint8_t *lengths, int longest, uint32_t *codes)
{
    uint32_t next[LONGEST + 1] = {0}, of_length[LONGEST + 1] = {0}, first = 0;
    for (int s = 0; s < SYMBOLS; s++) {
        of_length[lengths[s]]++;
    }
    for (int length = longest; length > 0; length--) {
        next[length] = first;
        first = (first + of_length[length]) >> 1;
    }
    for (int s = 0; s < SYMBOLS; s++) {
        codes[s] = lengths[s] ? next[lengths[s]]++ << 8 | lengths[s] : 0;
    }
}

/* Bits from the lowest of the first byte on. */
typedef struct {
    uint8_t *out;
    uint64_t bits;
    int filled;
} Bits;

static void
put(Bits *to, uint32_t value, int width)
{
    to->bits |= (uint64_t)value << to->filled;
    to->filled += width;
    for (; to->filled >= 8; to->filled -= 8) {
        *to->out++ = (uint8_t)to->bits;
        to->bits >>= 8;
    }
}

static uint8_t *
close_bits(Bits *to)
{
    if (to->filled) {
        *to->out++ = (uint8_t)to->bits;
    }
    return to->out;
}

/* Shares of STATES, at least one for each weight that occurs, of which there are two or more. */
static void
share_states(const uint8_t *weights, int count, int *shares)
{
    int counts[WEIGHTS] = {0}, left = STATES;
    for (int i = 0; i < count; i++) {
        counts[weights[i]]++;
    }
    for (int w = 0; w < WEIGHTS; w++) {
        shares[w] = (counts[w] * STATES + count / 2) / count;
        shares[w] += counts[w] && !shares[w];
        left -= shares[w];
    }
    for (int step = left < 0 ? -1 : 1; left; left -= step) {
        int most = 0;
        for (int w = 1; w < WEIGHTS; w++) {
            most = shares[w] > shares[most] ? w : most;
        }
        shares[most] += step;
    }
}

/* "FSE Table Description": numbers of as many bits as what is left of the states can take. */
static void
put_shares(Bits *to, const int *shares)
{
    put(to, STATES_LOG - 5, 4);
    int left = STATES + 1, threshold = STATES, width = STATES_LOG + 1;
    for (int w = 0; left > 1; w++) {
        int spare = 2 * threshold - 1 - left, value = shares[w] + 1;
        left -= shares[w];
        value += value >= threshold ? spare : 0;
        put(to, (uint32_t)value, width - (value < spare));
        if (!shares[w]) {
            int zeros = 0;
            while (!shares[w + 1 + zeros]) {
                zeros++;
            }
            w += zeros;
            for (; zeros >= 3; zeros -= 3) {
                put(to, 3, 2);
            }
            put(to, (uint32_t)zeros, 2);
        }
        for (; left < threshold; threshold >>= 1) {
            width--;
        }
    }
}

/* Two finite state coders in turns, from the last weight to the first. Returns where they end. */
static uint8_t *
code_weights(const uint8_t *weights, int count, uint8_t *out)
{
    Bits to = {out, 0, 0};
    int shares[WEIGHTS], begins[WEIGHTS + 1] = {0}, filled[WEIGHTS];
    uint8_t spread[STATES], next[STATES];
    share_states(weights, count, shares);
    put_shares(&to, shares);
    to.out = close_bits(&to);
    to.bits = 0;
    to.filled = 0;
    for (int w = 0, place = 0; w < WEIGHTS; w++) {
        begins[w + 1] = begins[w] + shares[w];
        filled[w] = begins[w];
        for (int n = 0; n < shares[w]; n++) {
            spread[place] = (uint8_t)w;
            place = (place + (STATES >> 1) + (STATES >> 3) + 3) % STATES;
        }
    }
    for (int state = 0; state < STATES; state++) {
        next[filled[spread[state]]++] = (uint8_t)state;
    }
    int states[2] = {-1, -1};
    for (int i = count - 1; i >= 0; i--) {
        int w = weights[i], *state = &states[i & 1];
        if (*state < 0) {
            /* The one that reads most bits, at least one: the decoder ends where there are none left. */
            *state = next[begins[w]];
            continue;
        }
        int whole = STATES + *state, bits = 0;
        while (whole >> bits >= 2 * shares[w]) {
            bits++;
        }
        put(&to, (uint32_t)(whole & ((1 << bits) - 1)), bits);
        *state = next[begins[w] + (whole >> bits) - shares[w]];
    }
    put(&to, (uint32_t)states[1], STATES_LOG);
    put(&to, (uint32_t)states[0], STATES_LOG);
    put(&to, 1, 1);
    return close_bits(&to);
}

/* "Huffman Tree Description": the weights of all symbols but the last, which follows from them. Returns its bytes, or 0
 * where it cannot be described: many symbols of equal weight, and then one of another. */
static size_t
describe_tree(const uint8_t *lengths, int longest, uint8_t *tree)
{
    uint8_t weights[SYMBOLS], room[2 * SYMBOLS];
    int last = SYMBOLS - 1, distinct = 0;
    while (!lengths[last]) {
        last--;
    }
    for (int s = 0; s < last; s++) {
        weights[s] = lengths[s] ? (uint8_t)(longest + 1 - lengths[s]) : 0;
        distinct += s && weights[s] != weights[s - 1];
    }
    size_t direct = last <= 128 ? (size_t)(last + 1) / 2 : MOST_OF_TREE, coded = MOST_OF_TREE;
    if (last > 2 && distinct) {
        coded = (size_t)(code_weights(weights, last, room) - room);
    }
    if (coded < direct) {
        tree[0] = (uint8_t)coded;
        memcpy(tree + 1, room, coded);
        return 1 + coded;
    }
    if (last > 128) {
        return 0;
    }
    tree[0] = (uint8_t)(127 + last);
    weights[last] = 0;
    for (int s = 0; s < last; s += 2) {
        tree[1 + s / 2] = (uint8_t)(weights[s] << 4 | weights[s + 1]);
    }
    return 1 + direct;
}

/* Whether no code of bytes makes them an eightieth smaller: their entropy is at least that of order two, of 7.9 bits. */
static int
is_noise(const uint32_t *counts, size_t size)
{
    uint64_t squares = 0;
    for (int s = 0; s < SYMBOLS; s++) {
        squares += (uint64_t)counts[s] * counts[s];
    }
    return squares * 239 <= (uint64_t)size * size;
}

static size_t
literals_header(size_t size)
{
    return size < 1 << 10 ? 3 : size < 1 << 14 ? 4 : 5;
}

static void
plan_block(const uint8_t *bytes, size_t size, Plan *plan)
{
    uint32_t counts[SYMBOLS];
    uint8_t lengths[SYMBOLS];
    plan->kind = RAW;
    plan->nbytes = size;
    if (!size) {
        return;
    }
    count_symbols(bytes, size, counts);
    if (counts[bytes[0]] == size) {
        plan->kind = RUN;
        plan->nbytes = 1;
        return;
    }
    if (size < FEWEST || is_noise(counts, size)) {
        return;
    }
    int longest = code_lengths(counts, lengths);
    size_t bits = 0;
    for (int s = 0; s < SYMBOLS; s++) {
        bits += (size_t)counts[s] * lengths[s];
    }
    /* Each stream ends with one to eight bits, and the block with the number of its sequences. */
    size_t nbytes = literals_header(size) + JUMPS + bits / 8 + 4 + 1, gain = size / 64 + MOST_OF_TREE / 4;
    if (nbytes + gain >= size) {
        return;
    }
    plan->tree_nbytes = describe_tree(lengths, longest, plan->tree);
    if (!plan->tree_nbytes || nbytes + plan->tree_nbytes >= size) {
        return;
    }
    plan->kind = CODED;
    plan->nbytes = nbytes + plan->tree_nbytes;
    assign_codes(lengths, longest, plan->codes);
}

/* One stream of codes, from the last byte to the first. Returns where it ends. */
EACH_WIDTH static uint8_t *
write_stream(const uint8_t *bytes, size_t size, const uint32_t *codes, uint8_t *out)
{
    enum { AT_ONCE = 5, WORD = 63 };  /* with the seven bits that may be left over, five codes fit into a word */
    uint64_t bits = 0, filled = 0;
    const uint8_t *end = bytes + size;
    /* Of what is filled only the lowest bits count, and so whole entries are added to it. */
    while ((end - bytes) % AT_ONCE) {
        uint64_t code = codes[*--end];
        bits |= (code >> 8) << (filled & WORD);
        filled += code;
    }
    for (; end > bytes; end -= AT_ONCE) {
        filled &= WORD;
        memcpy(out, &bits, 8);
        out += filled >> 3;
        bits >>= filled & 0x38;
        filled &= 7;
        for (int k = 1; k <= AT_ONCE; k++) {
            uint64_t code = codes[end[-k]];
            bits |= (code >> 8) << (filled & WORD);
            filled += code;
        }
    }
    filled &= WORD;
    bits |= (uint64_t)1 << filled;
    memcpy(out, &bits, 8);
    return out + (filled >> 3) + 1;
}

static uint8_t *
write_number(uint8_t *out, uint64_t number, size_t nbytes)
{
    memcpy(out, &number, nbytes);
    return out + nbytes;
}

static uint8_t *
write_coded(const uint8_t *bytes, size_t size, const Plan *plan, uint8_t *out)
{
    size_t header = literals_header(size), quarter = (size + 3) / 4;
    uint8_t *tree = out + header, *jumps = tree + plan->tree_nbytes, *stream = jumps + JUMPS;
    memcpy(tree, plan->tree, plan->tree_nbytes);
    for (size_t done = 0; done < size; done += quarter) {
        uint8_t *end = write_stream(bytes + done, size - done < quarter ? size - done : quarter, plan->codes, stream);
        if (done + quarter < size) {
            jumps = write_number(jumps, (uint64_t)(end - stream), 2);
        }
        stream = end;
    }
    uint64_t width = header == 3 ? 10 : header == 4 ? 14 : 18;
    write_number(out, 2 | (header - 2) << 2 | size << 4 | (uint64_t)(stream - tree) << (4 + width), header);
    *stream++ = 0;
    return stream;
}

static uint8_t *
write_block(const uint8_t *bytes, size_t size, int is_last, uint8_t *out)
{
    Plan plan;
    plan_block(bytes, size, &plan);
    uint8_t *body = out + BLOCK_HEADER, *end = body + plan.nbytes;
    size_t length = size;
    if (plan.kind == CODED) {
        end = write_coded(bytes, size, &plan, body);
        length = (size_t)(end - body);
    }
    else {
        memcpy(body, bytes, plan.nbytes);
    }
    write_number(out, (uint64_t)is_last | (uint64_t)plan.kind << 1 | length << 3, BLOCK_HEADER);
    return end;
}

/* A frame of one segment, without a checksum. */
static uint8_t *
write_frame(const uint8_t *bytes, size_t size, uint8_t *out)
{
    int flag = size < 256 ? 0 : size < 65536 + 256 ? 1 : 2;
    out = write_number(out, 0xFD2FB528u, 4);
    *out++ = (uint8_t)(flag << 6 | 1 << 5);
    out = write_number(out, flag == 1 ? size - 256 : size, (size_t)1 << flag);
    for (size_t done = 0;; done += BLOCK) {
        int is_last = size - done <= BLOCK;
        out = write_block(bytes + done, is_last ? size - done : BLOCK, is_last, out);
        if (is_last) {
            return out;
        }
    }
}

/* The most that a frame takes, and is written to. */
static size_t
frame_bound(size_t size)
{
    return FRAME_HEADER + size + (size / BLOCK + 1) * BLOCK_HEADER + SLACK;
}

static PyObject *
huffman_frames(PyObject *module, PyObject *args)
{
    Py_buffer words, frames;
    Py_ssize_t size, width, count;
    int start;
    if (!PyArg_ParseTuple(args, "y*ninnw*:huffman_frames", &words, &size, &start, &width, &count, &frames)) {
        return NULL;
    }
    Py_ssize_t done = 0, stored = 0;
    uint8_t *field = NULL;
    int is_plain = size == 1 && start == 0 && width == 1;
    Py_ssize_t total = size > 0 ? words.len / size : 0;
    if ((!is_plain && !is_field(size, start, width)) || words.len % size || count < 1 || count > 1 << 20) {
        PyErr_SetString(PyExc_ValueError, "expected bytes or floats, a field of them, and at most 2**20 to the frame");
    }
    else if ((field = PyMem_RawMalloc((size_t)((total < count ? total : count) * width))) == NULL) {
        PyErr_NoMemory();
    }
    else {
        Py_BEGIN_ALLOW_THREADS
        while (done < total) {
            Py_ssize_t here = total - done < count ? total - done : count;
            if (frame_bound((size_t)(here * width)) > (size_t)(frames.len - stored)) {
                break;
            }
            const uint8_t *bytes = (const uint8_t *)words.buf + done * size;
            /* Bytes are counted, and then coded: both from memory that nobody else may write to meanwhile. */
            if (is_plain) {
                memcpy(field, bytes, (size_t)here);
            }
            else {
                cut_field(bytes, size, here, start, width, field);
            }
            uint8_t *out = (uint8_t *)frames.buf + stored;
            stored += write_frame(field, (size_t)(here * width), out) - out;
            done += here;
        }
        Py_END_ALLOW_THREADS
        if (total && !done) {
            PyErr_SetString(PyExc_ValueError, "expected room for a frame");
        }
    }
    PyMem_RawFree(field);
    PyBuffer_Release(&words);
    PyBuffer_Release(&frames);
    return PyErr_Occurred() ? NULL : Py_BuildValue("nn", done, stored);
}

PyMethodDef huffman_functions[] = {
    {"huffman_frames", huffman_frames, METH_VARARGS,
     "huffman_frames(words, size, start, width, count, frames)\n\n"
     "Fill frames with as many whole ones, of a field of count words each, as there is room for; return how many words "
     "and bytes that are."},
    {NULL, NULL, 0, NULL},
};
