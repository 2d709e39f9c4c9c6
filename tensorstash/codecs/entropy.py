"""Zstandard, set up for what tensors are made of."""

from collections.abc import Callable

import numpy as np
import zstandard

from tensorstash import native
from tensorstash.buffers import Array
from tensorstash.codecs.literals import huffman_frames, literal_context
from tensorstash.codecs.payload import damaged
from tensorstash.protocols import Codec

FRAME = 1 << 20
"""Bytes that are compressed at a time, so that what the library allocates for their frame stays small."""

_SAMPLE_RUNS = 4
_SAMPLE_SHARE = 16
_LARGEST_SAMPLE = 1 << 16
_MIN_SAMPLED = 1 << 15
_SLACK = 1.06
"""How much larger the result of the faster of two ways may be."""

WORTHWHILE = 1.04
"""How many times smaller a sample has to get for the rest to be compressed."""

FAST_LEVELS = 3
"""Levels up to this one save time where it costs little."""


def frame_of(context: zstandard.ZstdCompressor, run: Array) -> Array:
    """Return a run of bytes as one frame, in memory of its size: the library's own is as large as the run."""
    return np.frombuffer(context.compress(run.data), np.uint8).copy()


def literal_frames(row: Array) -> list[Array]:
    """Return a run of bytes as frames of :data:`FRAME` bytes, without or nearly without a search for what repeats."""
    if native.functions is not None:
        return huffman_frames(native.functions, row, 0, 1, FRAME)
    return _library_frames(literal_context(), row)


class Compressor:
    """Chooses a context for each run of bytes; for one call, not for use by several threads.

    Making a context costs about 10 us, which is little for the 64 KiB and more that are worth compressing.

    Args:
        level: Zstandard's compression level; up to 0, and above 3, no other way is faster, or smaller.
    """

    def __init__(self, level: int) -> None:
        context = zstandard.ZstdCompressor(level=level)
        self._ways: list[Callable[[Array], list[Array]]] = [literal_frames] if 1 <= level <= FAST_LEVELS else []
        self._ways.append(lambda row: _library_frames(context, row))

    def compress(self, row: Array) -> list[Array]:
        """Return a run of bytes as frames of :data:`FRAME` bytes, or as it is if it, or a sample, gets no smaller."""
        way = self._ways[-1]
        if row.size >= _MIN_SAMPLED:
            sample = contiguous_sample(row, row.size // _SAMPLE_SHARE)
            sizes = [total_size(way(sample)) for way in self._ways]
            if min(sizes) * WORTHWHILE > sample.size:
                return [row]
            way = self._ways[choice(sizes)]
        frames = way(row)
        return frames if total_size(frames) < row.size else [row]


def choice(sizes: list[int]) -> int:
    """Return which of one or two ways to take, of which the first is the faster, by the bytes of a sample.

    >>> choice([105, 100]), choice([107, 100]), choice([100])
    (0, 1, 0)
    """
    return 0 if sizes[0] <= min(sizes) * _SLACK else 1


def total_size(frames: list[Array]) -> int:
    """Return the bytes of frames."""
    return sum(frame.size for frame in frames)


def _library_frames(context: zstandard.ZstdCompressor, row: Array) -> list[Array]:
    frames, stored = [], 0
    for start in range(0, row.size, FRAME):
        frames.append(frame_of(context, row[start : start + FRAME]))
        stored += frames[-1].size
        if stored >= row.size:
            return [row]
    return frames


def contiguous_sample(row: Array, size: int, runs: int = _SAMPLE_RUNS) -> Array:
    """Return about ``size`` elements, at most 65536, as evenly spaced runs of neighbours.

    Runs, because a stride can fall in step with the rows of a tensor and see one column only.
    """
    length = max(min(size, _LARGEST_SAMPLE) // runs, 1)
    if length * runs >= row.size:
        return row
    starts = [(row.size - length) * k // max(runs - 1, 1) for k in range(runs)]
    return np.concatenate([row[start : start + length] for start in starts])


class Decompressor:
    """Reads consecutive frames, straight into the memory they are wanted in; not for use by several threads.

    Args:
        codec: whose payload it is, for messages.
        frames: bytes of one frame or more.
    """

    def __init__(self, codec: Codec, frames: Array) -> None:
        self._codec = codec
        self._reader = zstandard.ZstdDecompressor().stream_reader(
            frames.data, read_size=max(frames.size, 1), read_across_frames=True
        )

    def read_into(self, target: Array) -> None:
        """Fill ``target`` with the next bytes.

        Raises:
            CodecError: there are not as many, or they are damaged.
        """
        try:
            done = self._reader.readinto(target.data)
        except zstandard.ZstdError as error:
            raise damaged(self._codec, f"a frame does not decompress: {error}") from error
        if done != target.size:
            raise damaged(self._codec, f"the frames gave {done} bytes, expected {target.size}")

    def finish(self) -> None:
        """Check that nothing is left.

        Raises:
            CodecError: there is.
        """
        try:
            rest = self._reader.read(1)
        except zstandard.ZstdError as error:
            raise damaged(self._codec, f"a frame does not end: {error}") from error
        if rest:
            raise damaged(self._codec, "the frames give more bytes than expected")
