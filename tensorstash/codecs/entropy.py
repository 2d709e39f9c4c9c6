"""Zstandard, set up for what tensors are made of."""

import numpy as np
import zstandard

from tensorstash.buffers import Array
from tensorstash.codecs.payload import damaged
from tensorstash.protocols import Codec

_SAMPLE_RUNS = 4
_SAMPLE_SHARE = 16
_LARGEST_SAMPLE = 1 << 16
_MIN_SAMPLED = 1 << 15
_WORTHWHILE = 1.04
_SLACK = 1.06
_FAST_LEVELS = 3


class Compressor:
    """The compression contexts of one call; not for use by several threads.

    Making contexts costs about 10 us, which is little for the 64 KiB and more that are worth compressing.

    Args:
        level: Zstandard's compression level.
    """

    def __init__(self, level: int) -> None:
        self._level = level
        self._general = zstandard.ZstdCompressor(level=level)
        # Among the bytes of one plane few matches are as long as 7, and looking for them in a small table is cheap;
        # from level 1 on the literals that remain, here nearly all, are Huffman coded.
        self._literal = zstandard.ZstdCompressor(
            compression_params=zstandard.ZstdCompressionParameters.from_level(1, window_log=17, hash_log=6, min_match=7)
        )

    def choose(self, sample: Array) -> zstandard.ZstdCompressor | None:
        """Return the context that suits bytes like these, or None if they do not compress.

        Bytes that are merely unevenly distributed, such as the exponents of floats, are compressed at twice the speed
        by a context that hardly searches for matches.
        """
        literal = len(self._literal.compress(sample.data))
        general = len(self._general.compress(sample.data))
        if min(literal, general) * _WORTHWHILE > sample.size:
            return None
        return self._literal if literal <= general * (_SLACK if self._level <= _FAST_LEVELS else 1) else self._general

    def compress(self, row: Array) -> Array:
        """Return a run of bytes as one frame, or the run itself if it does not get smaller."""
        context = self._general
        if row.size >= _MIN_SAMPLED:
            chosen = self.choose(contiguous_sample(row, row.size // _SAMPLE_SHARE))
            if chosen is None:
                return row
            context = chosen
        frame: Array = np.frombuffer(context.compress(row.data), np.uint8)
        return frame if frame.size < row.size else row


def contiguous_sample(row: Array, size: int, runs: int = _SAMPLE_RUNS) -> Array:
    """Return about ``size`` elements, at most 65536, as evenly spaced runs of neighbours.

    Runs, because a stride can fall in step with the rows of a tensor and see one column only.
    """
    length = max(min(size, _LARGEST_SAMPLE) // runs, 1)
    if length * runs >= row.size:
        return row
    starts = np.linspace(0, row.size - length, runs).astype(np.intp)
    return np.concatenate([row[start : start + length] for start in starts.tolist()])


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
