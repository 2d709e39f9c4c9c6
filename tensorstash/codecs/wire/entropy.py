"""Zstandard, set up for the bytes of tensors: rows of them, each compressed or stored as it is."""

from collections.abc import Iterable

import numpy as np
import zstandard

from tensorstash.codecs.wire.format import check_run, damaged, split_sections
from tensorstash.host.arrays import Array
from tensorstash.protocols import Codec

_FRAME_NBYTES = 1 << 20
"""Bytes that are compressed at a time, so that the library's own memory for a frame stays small."""

_WORTHWHILE_RATIO = 1.04
"""Ratio that a sample has to reach for the rest to be compressed."""

_FASTER_MAY_BE_LARGER = 1.06
"""Largest ratio of the result of the faster of two contexts to the other one."""

_FAST_LEVELS = 3
_SAMPLE_RUNS = 4
_ROW_PER_SAMPLE = 16
_LARGEST_SAMPLE_ELEMENTS = 1 << 16
_SMALLEST_SAMPLED_NBYTES = 1 << 15


def _huffman_context() -> zstandard.ZstdCompressor:
    """Return a context for bytes that are unevenly distributed but hardly ever repeat in order, such as exponents.

    The library cannot code by Huffman without a search for repetitions. Few matches are as long as 7, and looking for
    them in a small table is cheap; the literals that remain, nearly all, are coded. Twice as fast as level 1.
    """
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=17, hash_log=6, min_match=7)
    return zstandard.ZstdCompressor(compression_params=parameters)


def compressed_rows(rows: Iterable[Array], level: int) -> list[Array]:
    """Return the stored lengths of rows as ``uint64``, and their frames or, where these are no smaller, their bytes.

    Args:
        rows: runs of bytes; each is read before the next one is asked for, and kept only if it does not compress.
        level: Zstandard's compression level.
    """
    contexts = [zstandard.ZstdCompressor(level=level)]  # making one takes 10 us
    if 1 <= level <= _FAST_LEVELS:
        contexts.insert(0, _huffman_context())
    stored = [_compressed(row, contexts) for row in rows]
    lengths = np.array([total_size(frames) for frames in stored], "<u8").view(np.uint8)
    return [lengths, *(frame for frames in stored for frame in frames)]


def _compressed(row: Array, contexts: list[zstandard.ZstdCompressor]) -> list[Array]:
    context = contexts[-1]
    if row.size >= _SMALLEST_SAMPLED_NBYTES:
        sample = contiguous_sample(row, row.size // _ROW_PER_SAMPLE)
        sizes = [total_size(_frames(context, sample)) for context in contexts]
        if min(sizes) * _WORTHWHILE_RATIO > sample.size:
            return [row]
        context = contexts[0 if sizes[0] <= min(sizes) * _FASTER_MAY_BE_LARGER else -1]
    frames = _frames(context, row)
    return frames if total_size(frames) < row.size else [row]


def _frames(context: zstandard.ZstdCompressor, row: Array) -> list[Array]:
    runs = (row[start : start + _FRAME_NBYTES] for start in range(0, row.size, _FRAME_NBYTES))
    # In memory of their size: the library's own is as large as the run.
    return [np.frombuffer(context.compress(run.data), np.uint8).copy() for run in runs]


def total_size(frames: Iterable[Array]) -> int:
    """Return the bytes of frames."""
    return sum(frame.size for frame in frames)


def stored_rows(codec: Codec, body: Array, count: int) -> list[Array]:
    """Return each of ``count`` rows as :func:`compressed_rows` has stored it.

    Raises:
        CodecError: the lengths do not add up.
    """
    check_run(codec, body, at_least=8 * count)
    return split_sections(codec, body[8 * count :], *body[: 8 * count].view("<u8").tolist())


def read_row(codec: Codec, stored: Array, target: Array) -> None:
    """Fill ``target`` with the bytes of a stored row.

    Raises:
        CodecError: there are not as many, or they are damaged.
    """
    if stored.size == target.size:
        target[:] = stored
        return
    size = max(stored.size, 1)
    reader = zstandard.ZstdDecompressor().stream_reader(stored.data, read_size=size, read_across_frames=True)
    try:
        done = reader.readinto(target.data)
        is_more = bool(reader.read(1))
    except zstandard.ZstdError as error:
        raise damaged(codec, f"a frame does not decompress: {error}") from error
    if done != target.size or is_more:
        raise damaged(codec, f"the frames gave {'more than ' * is_more}{done} bytes, expected {target.size}")


def contiguous_sample(row: Array, size: int, runs: int = _SAMPLE_RUNS) -> Array:
    """Return about ``size`` elements, at most 65536, as evenly spaced runs of neighbours.

    Runs, because a stride can fall in step with the rows of a tensor and see one column only.
    """
    length = max(min(size, _LARGEST_SAMPLE_ELEMENTS) // runs, 1)
    if length * runs >= row.size:
        return row
    starts = [(row.size - length) * k // max(runs - 1, 1) for k in range(runs)]
    return np.concatenate([row[start : start + length] for start in starts])
