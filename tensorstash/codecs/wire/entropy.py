"""Zstandard, set up for what tensors are made of."""

import numpy as np
import zstandard

from tensorstash.codecs.wire.format import damaged
from tensorstash.host.arrays import Array
from tensorstash.protocols import Codec

FRAME_NBYTES = 1 << 20
"""Bytes that are compressed at a time, so that what the library allocates for their frame stays small."""

WORTHWHILE_RATIO = 1.04
"""How many times smaller a sample has to get for the rest to be compressed."""

FAST_LEVELS = 3
"""Levels up to this one save time where it costs little."""

_SAMPLE_RUNS = 4
_ROW_PER_SAMPLE = 16
_LARGEST_SAMPLE_ELEMENTS = 1 << 16
_SMALLEST_SAMPLED_NBYTES = 1 << 15

_FASTER_MAY_BE_LARGER = 1.06
"""How many times larger the result of the faster of two contexts may be."""


def huffman_context() -> zstandard.ZstdCompressor:
    """Return a context for bytes that are unevenly distributed but hardly ever repeat in order, such as exponents.

    The library cannot code by Huffman without a search for what repeats. Few matches are as long as 7, and looking for
    them in a small table is cheap; from level 1 on the literals that remain, nearly all, are coded. Twice as fast as
    level 1.
    """
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=17, hash_log=6, min_match=7)
    return zstandard.ZstdCompressor(compression_params=parameters)


def frame_of(context: zstandard.ZstdCompressor, run: Array) -> Array:
    """Return a run of bytes as one frame, in memory of its size: the library's own is as large as the run."""
    return np.frombuffer(context.compress(run.data), np.uint8).copy()


class Compressor:
    """Chooses a context for each run of bytes; for one call, not for use by several threads.

    Making a context costs about 10 us, which is little for the 64 KiB and more that are worth compressing.

    Args:
        level: Zstandard's compression level; up to 0, and above 3, no other context is faster, or smaller.
    """

    def __init__(self, level: int) -> None:
        contexts = [zstandard.ZstdCompressor(level=level)]
        self._contexts = [huffman_context(), *contexts] if 1 <= level <= FAST_LEVELS else contexts

    def compress(self, row: Array) -> list[Array]:
        """Return a run of bytes as frames of :data:`FRAME_NBYTES`, or as it is if it, or a sample, gets no smaller."""
        context = self._contexts[-1]
        if row.size >= _SMALLEST_SAMPLED_NBYTES:
            sample = contiguous_sample(row, row.size // _ROW_PER_SAMPLE)
            sizes = [total_size(_frames(context, sample)) for context in self._contexts]
            if min(sizes) * WORTHWHILE_RATIO > sample.size:
                return [row]
            fastest = sizes[0] <= min(sizes) * _FASTER_MAY_BE_LARGER
            context = self._contexts[0 if fastest else -1]
        frames = _frames(context, row)
        return frames if total_size(frames) < row.size else [row]


def total_size(frames: list[Array]) -> int:
    """Return the bytes of frames."""
    return sum(frame.size for frame in frames)


def _frames(context: zstandard.ZstdCompressor, row: Array) -> list[Array]:
    frames, stored = [], 0
    for start in range(0, row.size, FRAME_NBYTES):
        frames.append(frame_of(context, row[start : start + FRAME_NBYTES]))
        stored += frames[-1].size
        if stored >= row.size:
            return [row]
    return frames


def contiguous_sample(row: Array, size: int, runs: int = _SAMPLE_RUNS) -> Array:
    """Return about ``size`` elements, at most 65536, as evenly spaced runs of neighbours.

    Runs, because a stride can fall in step with the rows of a tensor and see one column only.
    """
    length = max(min(size, _LARGEST_SAMPLE_ELEMENTS) // runs, 1)
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
