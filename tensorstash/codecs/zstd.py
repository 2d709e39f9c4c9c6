"""Entropy coding with Zstandard, row by row, where it pays."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tensorstash.codecs.wire.entropy import compressed_rows, read_row, stored_rows
from tensorstash.codecs.wire.format import check_data, check_integer, check_run, damaged, joined
from tensorstash.host.arrays import Array, aligned_empty, as_bytes
from tensorstash.protocols import CodecKind
from tensorstash.spec import TensorSpec, opaque_bytes

_MAX_ROWS = 16
_TOTAL_NBYTES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Zstd:
    """Compress bytes with Zstandard.

    A ``uint8`` array of 2 to 16 rows, such as shuffled bytes, is compressed row by row; anything else is one row. A
    row of which a sample does not compress is stored as it is. Rows whose bytes are merely unevenly distributed, such
    as the exponents of floats, are coded with parameters that search little, at twice the speed, unless the level does
    better on the sample. The GIL is released while compressing. Payloads are at most 8 bytes larger than the data, and
    8 for each row.

    Payload: the number of bytes and the length of every stored row as ``uint64``, and the rows, each as Zstandard
    frames of 1 MiB, or as it is where the length is its own.

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
        rows = compressed_rows(raw.reshape(count, raw.size // count), self.level)
        return joined(np.array([raw.size], "<u8").view(np.uint8), *rows)

    def decode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the array in fresh memory."""
        check_run(self, data, at_least=_TOTAL_NBYTES)
        (total,) = data[:_TOTAL_NBYTES].view("<u8").tolist()
        body, count, is_run = data[_TOTAL_NBYTES:], _row_count(spec), spec.shape == (-1,)
        if not is_run and total != spec.nbytes:
            raise damaged(self, f"the payload is of {total} bytes, expected {spec.nbytes}")
        stored, target = stored_rows(self, body, count), aligned_empty(total)
        for frames, row in zip(stored, target.reshape(count, total // count), strict=True):
            read_row(self, frames, row)
        return target if is_run else target.view(spec.carrier).reshape(spec.shape)


def _row_count(spec: TensorSpec) -> int:
    is_shuffled = spec.dtype == "uint8" and len(spec.shape) == 2 and 2 <= spec.shape[0] <= _MAX_ROWS
    return spec.shape[0] if is_shuffled else 1
