"""Entropy coding with Zstandard, row by row, where it pays."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import zstandard

from tensorstash.codecs.payload import (
    check_choice,
    check_data,
    check_integer,
    check_run,
    damaged,
    joined,
    split_sections,
)
from tensorstash.host.arrays import Array, aligned_empty, as_bytes
from tensorstash.protocols import Codec, CodecKind
from tensorstash.spec import TensorSpec, opaque_bytes

_TOTAL_NBYTES = 8
_FRAME_NBYTES = 1 << 20  # compressed at a time, so that the library's own memory for a frame stays small
_WORTHWHILE_RATIO = 1.04  # that a sample has to reach for the rest to be compressed
_FASTER_MAY_BE_LARGER = 1.06  # largest ratio of the result of the faster of two contexts to the other one
_FAST_LEVELS = 3
_SAMPLE_RUNS = 4
_ROW_PER_SAMPLE = 16
_LARGEST_SAMPLE_ELEMENTS = 1 << 16
_SMALLEST_SAMPLED_NBYTES = 1 << 15


@dataclass(frozen=True, kw_only=True, slots=True)
class Zstd:
    """Compress bytes with Zstandard.

    Shuffled, the bytes of each element are apart, and those of one place are a row of their own, as in Blosc: the sign
    and most of the exponent of floats are in the last. Otherwise all bytes are one row. A row of which a sample does
    not compress is stored as it is. Rows whose bytes are merely unevenly distributed, such as exponents, are coded with
    parameters that search little, at twice the speed, unless the level does better on the sample. The GIL is released
    while compressing. Payloads are at most 8 bytes larger than the data, and 8 for each row.

    Payload: the number of bytes and the length of every stored row as ``uint64``, and the rows, each as Zstandard
    frames of 1 MiB, or as it is where the length is its own.

    Args:
        level: Zstandard's compression level, from -7 to 22; up to 0 trades Huffman coding for speed.
        shuffle: whether the bytes of each element are compressed apart; those of a run of bytes never are.

    Raises:
        ConfigError: no such level, or a ``shuffle`` that is neither true nor false.

    >>> from tensorstash.spec import TensorSpec
    >>> spec = TensorSpec((10_000,), (1,), 0, "uint8", "cpu")
    >>> payload = Zstd(level=1).encode(np.zeros(10_000, np.uint8), spec)
    >>> payload.size < 100, Zstd(level=1).decode(payload, spec).shape
    (True, (10000,))
    """

    name: ClassVar[str] = "zstd"
    lossless: ClassVar[bool] = True
    kind: ClassVar[CodecKind] = "array->bytes"

    level: int = 1
    shuffle: bool = False

    def __post_init__(self) -> None:
        check_integer("zstd.level", self.level, -7, 22)
        check_choice("zstd.shuffle", self.shuffle, (False, True))

    def accepts(self, spec: TensorSpec, /) -> bool:
        """Whether it is an array or a run of bytes: always."""
        return True

    def encoded_spec(self, spec: TensorSpec, /) -> TensorSpec:
        return opaque_bytes(spec)

    def encode(self, data: Array, spec: TensorSpec, /) -> Array:
        check_data(self, data, spec)
        raw = as_bytes(data)
        elements = raw.reshape(-1, self._row_count(spec))
        # A copy of one row at a time: there is no memory for all of them.
        rows = compressed_rows((np.ascontiguousarray(row) for row in elements.T), self.level)
        return joined(np.array([raw.size], "<u8").view(np.uint8), *rows)

    def decode(self, data: Array, spec: TensorSpec, /) -> Array:
        check_run(self, data, at_least=_TOTAL_NBYTES)
        (total,) = data[:_TOTAL_NBYTES].view("<u8").tolist()
        body, count, is_run = data[_TOTAL_NBYTES:], self._row_count(spec), spec.shape == (-1,)
        if not is_run and total != spec.nbytes:
            raise damaged(self, f"the payload is of {total} bytes, expected {spec.nbytes}")
        stored, target = stored_rows(self, body, count), aligned_empty(total)
        row = target if count == 1 else np.empty(total // count, np.uint8)
        for k, frames in enumerate(stored):
            read_row(self, frames, row)
            if count > 1:
                target.reshape(-1, count)[:, k] = row
        return target if is_run else target.view(spec.carrier).reshape(spec.shape)

    def _row_count(self, spec: TensorSpec) -> int:
        return spec.itemsize if self.shuffle else 1


def compressed_rows(rows: Iterable[Array], level: int) -> list[Array]:
    """Return the stored lengths of rows as ``uint64``, and their frames or, where these are no smaller, their bytes.

    Each row is read before the next one is asked for, and kept only if it does not compress.
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


def _huffman_context() -> zstandard.ZstdCompressor:
    """Return a context for bytes that are unevenly distributed but hardly ever repeat in order, such as exponents.

    The library cannot code by Huffman without a search for repetitions; that for long ones in a small table is cheap.
    """
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=17, hash_log=6, min_match=7)
    return zstandard.ZstdCompressor(compression_params=parameters)


def _frames(context: zstandard.ZstdCompressor, row: Array) -> list[Array]:
    runs = (row[start : start + _FRAME_NBYTES] for start in range(0, row.size, _FRAME_NBYTES))
    # In memory of their size: the library's own is as large as the run.
    return [np.frombuffer(context.compress(run.data), np.uint8).copy() for run in runs]


def total_size(frames: Iterable[Array]) -> int:
    """Return the bytes of frames."""
    return sum(frame.size for frame in frames)


def stored_rows(codec: Codec, body: Array, count: int) -> list[Array]:
    """Return each of ``count`` rows as :func:`compressed_rows` has stored it."""
    check_run(codec, body, at_least=8 * count)
    return split_sections(codec, body[8 * count :], *body[: 8 * count].view("<u8").tolist())


def read_row(codec: Codec, stored: Array, target: Array) -> None:
    """Fill ``target`` with the bytes of a stored row; raise a CodecError if there are not as many."""
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
