"""The frames written here are frames of Zstandard: the library reads them, and they are as small as its own."""

import threading

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorstash import native
from tensorstash.buffers import Array, as_bytes
from tensorstash.codecs.fields import field_start, field_widths, take_fields
from tensorstash.codecs.literals import huffman_frames, literal_context

pytestmark = pytest.mark.skipif(native.functions is None, reason="nothing is compiled here")

EDGES = [1, 2, 3, 4, 5, 63, 64, 65, 66, 67, 255, 256, 1023, 1024, 16_383, 16_384, 65_535, 65_536, 65_537]
EDGES += [65_791, 65_792, 131_071, 131_072, 131_073]
SHARES: dict[str, Array] = {
    "one": np.ones(1),
    "two": np.ones(2),
    "two, one of them rare": np.array([0.999, 0.001]),
    "powers of two": 2.0 ** -np.arange(30),
    "Fibonacci": 1.618 ** -np.arange(40),
    "wide": 0.93 ** np.arange(256),
    "128": 0.9 ** np.arange(128),
    "129": 0.9 ** np.arange(129),
    "130": 0.9 ** np.arange(130),
    "flat": np.ones(256),
    "flat but for the last": np.array([1.0] * 192 + [64.0]),
    "two levels": np.array([1.0] * 100 + [30.0] * 30),
}


def written(words: Array, start: int = 0, width: int = 1, count: int = 1 << 20) -> bytes:
    """Return frames of one call, which has touched nothing else."""
    assert native.functions is not None
    guard, room = 0xA5, words.size * width + (words.size // count + 1) * (64 + count * width // 64)
    frames = np.full(room + 64, guard, np.uint8)
    done, stored = native.functions.huffman_frames(words, words.itemsize, start, width, count, frames[:room])
    assert done == words.size
    assert stored <= room
    assert (frames[room:] == guard).all()
    return frames[:stored].tobytes()


def read(frames: bytes, size: int) -> bytes:
    return zstandard.ZstdDecompressor().stream_reader(frames, read_across_frames=True).read(size + 1)


def drawn(shares: Array, size: int) -> Array:
    """Return bytes of about these shares, none of which is missing where there is room."""
    rng = np.random.default_rng(size)
    symbols = rng.choice(shares.size, size, p=shares / shares.sum()).astype(np.uint8)
    symbols[: shares.size] = np.arange(shares.size)[:size]
    return symbols


def tree_of(frames: bytes) -> int:
    """Return the first byte of the tree of the first block, which is a coded one."""
    single = frames[4]
    block = 5 + (1 << (single >> 6))
    assert single & 0x3F == 1 << 5
    assert frames[block] >> 1 & 3 == 2
    literals = block + 3
    assert frames[literals] & 3 == 2
    return frames[literals + {1: 3, 2: 4, 3: 5}[frames[literals] >> 2 & 3]]


@pytest.mark.parametrize("shares", SHARES)
def test_the_library_reads_them_back(shares: str) -> None:
    symbols = drawn(SHARES[shares], max(EDGES))
    for size in EDGES:
        row = symbols[:size]
        assert read(written(row), size) == row.tobytes(), size
        row = 255 - symbols[-size:]
        assert read(written(row, count=65_536), size) == row.tobytes(), size


@settings(max_examples=200, deadline=None)
@given(draw=st.data())
def test_the_library_reads_any_bytes_back(draw: st.DataObject) -> None:
    alphabet = np.array(draw.draw(st.lists(st.integers(0, 255), min_size=1, max_size=256, unique=True)), np.uint8)
    slope = draw.draw(st.floats(0.3, 1))
    size = draw.draw(st.integers(1, 3000))
    rng = np.random.default_rng(draw.draw(st.integers(0, 1 << 20)))
    shares = slope ** np.arange(alphabet.size)
    row = rng.choice(alphabet, size, p=shares / shares.sum())
    count = draw.draw(st.integers(1, 4000))
    assert read(written(row, count=count), row.size) == row.tobytes()


@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("count", [7, 1000, 65_536])
def test_fields_of_floats_are_cut_on_the_way(itemsize: int, count: int) -> None:
    floats = np.random.default_rng(0).standard_normal(100_001).astype(f"f{itemsize}").view(f"u{itemsize}")
    for k, width in enumerate(field_widths(itemsize)):
        field = np.empty(floats.size, f"u{width}")
        take_fields(floats, {k: field})
        frames = written(floats, field_start(itemsize, k), width, count)
        assert read(frames, field.nbytes) == field.tobytes()


def test_rooms_are_filled_one_after_the_other() -> None:
    assert native.functions is not None
    row = drawn(SHARES["wide"], 4 << 20)
    frames = huffman_frames(native.functions, row, 0, 1, 10_000)
    assert len(frames) > 2
    assert read(b"".join(frame.tobytes() for frame in frames), row.size) == row.tobytes()
    assert huffman_frames(native.functions, row[:0], 0, 1, 10_000) == []


def test_trees_come_in_both_kinds() -> None:
    assert tree_of(written(drawn(np.array([3.0, 1, 1, 1]), 5000))) >= 128
    assert tree_of(written(drawn(SHARES["129"], 50_000))) < 128
    assert tree_of(written(drawn(SHARES["wide"], 50_000))) < 128
    assert tree_of(written(drawn(SHARES["Fibonacci"], 50_000) + np.uint8(120))) < 128


@pytest.mark.parametrize("shares", ["two", "powers of two", "Fibonacci", "wide", "129", "two levels"])
def test_they_are_about_as_small_as_those_of_the_library(shares: str) -> None:
    row = drawn(SHARES[shares], 1 << 17)
    assert len(written(row)) <= 1.01 * len(literal_context().compress(row)) + 20


@pytest.mark.parametrize("size", [1, 63, 64, 1000, 131_072, 1 << 20])
def test_what_does_not_shrink_costs_a_few_bytes_and_what_is_equal_takes_them(size: int) -> None:
    noise = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    blocks = -(-size // 131_072)
    assert len(written(noise)) <= size + 9 + 3 * blocks
    assert len(written(np.full(size, 9, np.uint8))) <= 9 + 4 * blocks


@pytest.mark.parametrize("spare", range(0, 40, 3))
def test_a_room_that_is_too_small_is_refused_before_anything_is_beyond_it(spare: int) -> None:
    assert native.functions is not None
    for row in (np.random.default_rng(0).integers(0, 256, 5000, np.uint8), drawn(SHARES["wide"], 5000)):
        guard, frames = 0xA5, np.full(row.size + 100, 0xA5, np.uint8)
        try:
            done, stored = native.functions.huffman_frames(row, 1, 0, 1, row.size, frames[: row.size + spare])
        except ValueError:
            stored = 0
        else:
            assert (done, read(frames[:stored].tobytes(), row.size)) == (row.size, row.tobytes())
        assert (frames[row.size + spare :] == guard).all()
        assert bool(stored) == (spare >= 21)


def test_equal_bytes_give_equal_frames() -> None:
    row = drawn(SHARES["wide"], 200_000)
    assert written(row) == written(row.copy())


def test_sizes_that_do_not_fit_are_refused() -> None:
    functions, words, room = native.functions, np.zeros(1000, np.uint32), np.empty(5000, np.uint8)
    assert functions is not None
    row = as_bytes(words)
    for arguments in (
        (words, 4, 0, 4, 100, room),
        (words, 4, 32, 1, 100, room),
        (words, 4, -1, 2, 100, room),
        (words, 3, 0, 1, 100, room),
        (words, 0, 0, 1, 100, room),
        (words, -4, 0, 1, 100, room),
        (row[:-1], 4, 0, 1, 100, room),
        (row, 1, 1, 1, 100, room),
        (row, 1, 0, 2, 100, room),
        (row, 1, 0, 1, 0, room),
        (row, 1, 0, 1, (1 << 20) + 1, room),
        (row, 1, 0, 1, 1000, room[:1000]),
    ):
        with pytest.raises(ValueError, match="expected"):
            functions.huffman_frames(*arguments)


def test_nothing_is_written_beyond_the_room_while_others_write_to_the_source() -> None:
    """Which is a program's mistake, and gets its error later; until then its memory stays whole."""
    size = 100_000
    rng = np.random.default_rng(0)
    high = rng.integers(1, 256, size).astype(np.uint8)
    low = np.where(rng.random(size) < 0.02, high, 0).astype(np.uint8)
    data, room = low.copy(), np.empty(2 * size, np.uint8)
    bound = size + 64 + size // 64
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            for content in (low, high):
                for _ in range(20):  # about as long as a block is being counted, or coded
                    np.copyto(data, content)

    writer = threading.Thread(target=write)
    writer.start()
    assert native.functions is not None
    try:
        for _ in range(4000):
            room[bound:] = 0xA5
            _, stored = native.functions.huffman_frames(data, 1, 0, 1, size, room[:bound])
            assert stored <= bound
            assert (room[bound:] == 0xA5).all()
            assert len(zstandard.ZstdDecompressor().decompress(room[:stored].tobytes())) == size
    finally:
        done.set()
        writer.join()
