"""Entropy coding with Zstandard, row by row, where it pays."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import zstandard

from tensorstash.codecs.wire.entropy import FRAME_NBYTES, Compressor, Decompressor
from tensorstash.codecs.wire.format import (
    CODED,
    HEADER_NBYTES,
    PLAIN,
    Header,
    check_data,
    check_integer,
    damaged,
    empty_array,
    open_payload,
    plain_payload,
    split_sections,
)
from tensorstash.host.arrays import Array, as_bytes, payload_empty
from tensorstash.protocols import CodecKind
from tensorstash.spec import TensorSpec, opaque_bytes

MAGIC = b"ZST1"
_MAX_ROWS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Zstd:
    """Compress bytes with Zstandard.

    A ``uint8`` array of 2 to 16 rows, such as shuffled bytes, is compressed row by row; anything else is one row. A
    row of which a sample does not compress is stored as it is. Rows whose bytes are merely unevenly distributed, such
    as the exponents of floats, are coded with parameters that search little, at twice the speed, unless the level does
    better on the sample. Contexts live for one call: making one costs about 10 us. The GIL is released while
    compressing. Payloads are at most 16 bytes larger than the data.

    Payload: header (mode 0 plain, 1 rows; param rows, count bytes), then the bytes, or the length of every stored row
    as ``uint64`` and the rows, each as Zstandard frames of 1 MiB, or as it is where the length is its own.

    Args:
        level: Zstandard's compression level, from -7 to 22; up to 0 trades Huffman coding for speed.

    Raises:
        ConfigError: no such level.

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

    def __post_init__(self) -> None:
        check_integer("zstd.level", self.level, -7, 22)

    def accepts(self, spec: TensorSpec, /) -> bool:
        """Whether it is an array or a run of bytes: always."""
        return True

    def encoded_spec(self, spec: TensorSpec, /) -> TensorSpec:
        """Return a run of bytes of unknown length."""
        return opaque_bytes(spec)

    def encode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the payload in fresh memory."""
        check_data(self, data, spec)
        raw = as_bytes(data)
        count = _row_count(spec)
        compressor = Compressor(self.level)
        stored = [compressor.compress(row) for row in raw.reshape(count, raw.size // count)]
        lengths = np.array([sum(frame.size for frame in frames) for frames in stored], "<u8")
        if lengths.nbytes + int(lengths.sum()) >= raw.size:
            return plain_payload(Header(MAGIC, PLAIN, count, raw.size), data)
        payload = payload_empty(HEADER_NBYTES + lengths.nbytes + int(lengths.sum()))
        Header(MAGIC, CODED, count, raw.size).write(payload)
        parts = [lengths.view(np.uint8), *(frame for frames in stored for frame in frames)]
        np.concatenate(parts, out=payload[HEADER_NBYTES:])
        return payload

    def decode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the array in fresh memory."""
        count = _row_count(spec)
        header, body, plain = open_payload(self, data, spec, MAGIC, param=count, unit=spec.itemsize)
        if plain is not None:
            return plain
        if body.size < 8 * count:
            raise damaged(self, f"{body.size} bytes are too few for the lengths of {count} rows")
        lengths = body[: 8 * count].view("<u8").tolist()
        stored = split_sections(self, body[8 * count :], *lengths)
        row_nbytes = header.count // count
        for row in stored:
            self._check_frames(row, row_nbytes)
        array = empty_array(self, header.count // spec.itemsize, spec)
        for source, target in zip(stored, as_bytes(array).reshape(count, row_nbytes), strict=True):
            if source.size == row_nbytes:
                target[:] = source
            else:
                frame = Decompressor(self, source)
                frame.read_into(target)
                frame.finish()
        return array

    def _check_frames(self, row: Array, row_nbytes: int) -> None:
        """Compare the length of a row with what its first frame promises, before memory of that length is asked for."""
        if row.size == row_nbytes:
            return
        try:
            promised = zstandard.frame_content_size(row.data)
        except zstandard.ZstdError as error:
            raise damaged(self, f"no Zstandard frame: {error}") from error
        if promised != min(row_nbytes, FRAME_NBYTES) or row_nbytes > FRAME_NBYTES * row.size:
            raise damaged(self, f"{row.size} bytes whose first frame holds {promised} do not give {row_nbytes}")


def _row_count(spec: TensorSpec) -> int:
    is_shuffled = spec.dtype == "uint8" and len(spec.shape) == 2 and 2 <= spec.shape[0] <= _MAX_ROWS
    return spec.shape[0] if is_shuffled else 1
