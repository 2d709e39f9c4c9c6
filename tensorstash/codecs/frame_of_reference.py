"""Integers at the width that their range needs."""

from dataclasses import dataclass
from typing import ClassVar

from tensorstash import kernels
from tensorstash.codecs.wire.format import (
    HEADER_NBYTES,
    Header,
    check_data,
    empty_array,
    open_payload,
    plain_payload,
    split_sections,
)
from tensorstash.host.arrays import Array, payload_empty
from tensorstash.kernels.integers import unsigned
from tensorstash.protocols import CodecKind
from tensorstash.spec import TensorSpec, opaque_bytes

MAGIC = b"NRW1"
_WIDTHS = (0, 1, 2, 4, 8)


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameOfReference:
    """Store integers as their distance from the smallest one, in as many bytes as the largest distance needs.

    Indices and token numbers, which frameworks hold in ``int64``, take 1, 2 or 4 bytes; a constant takes none.

    Payload: header (mode: bytes of a stored element, as many as in the tensor for plain; count elements), then the
    smallest element, and the distances.

    >>> import numpy as np
    >>> from tensorstash.spec import TensorSpec
    >>> spec = TensorSpec((100,), (1,), 0, "int64", "cpu")
    >>> codec, data = FrameOfReference(), np.arange(-50, 50)
    >>> codec.encode(data, spec).size, codec.decode(codec.encode(data, spec), spec).tolist() == data.tolist()
    (124, True)
    """

    name: ClassVar[str] = "frame_of_reference"
    lossless: ClassVar[bool] = True
    kind: ClassVar[CodecKind] = "array->array"

    def accepts(self, spec: TensorSpec, /) -> bool:
        """Whether the elements are integers of more than one byte."""
        return spec.kind in ("int", "uint") and spec.itemsize > 1

    def encoded_spec(self, spec: TensorSpec, /) -> TensorSpec:
        """Return a run of bytes, whose length depends on what the tensor holds."""
        return opaque_bytes(spec)

    def encode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the payload in fresh memory."""
        check_data(self, data, spec)
        flat = data.reshape(-1)
        least, largest = kernels.active.integer_range(flat) if flat.size else (0, 0)
        width = _width(largest - least)
        header = Header(MAGIC, width, 0, flat.size)
        if width == spec.itemsize:
            return plain_payload(header, data)
        payload = payload_empty(HEADER_NBYTES + spec.itemsize + width * flat.size)
        header.write(payload)
        base = payload[HEADER_NBYTES : HEADER_NBYTES + spec.itemsize].view(data.dtype)
        base[0] = least
        if width:
            stored = payload[HEADER_NBYTES + spec.itemsize :].view(f"u{width}")
            kernels.active.subtract_base(flat, base, stored)
        return payload

    def decode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the array in fresh memory."""
        modes = [width for width in _WIDTHS if width <= spec.itemsize]
        header, body, plain = open_payload(self, data, spec, MAGIC, modes=modes, plain=spec.itemsize)
        if plain is not None:
            return plain
        array = empty_array(self, header.count, spec)
        target = unsigned(array)
        least, distances = split_sections(self, body, spec.itemsize, header.mode * header.count)
        base = least.view(target.dtype)
        if header.mode == 0:
            target[:] = base
        else:
            kernels.active.add_base(distances.view(f"u{header.mode}"), base, target)
        return array


def _width(span: int) -> int:
    return next(width for width in _WIDTHS if span < 1 << (8 * width))
