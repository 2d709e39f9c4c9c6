"""Integers at the width that their range needs."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tensorstash import native
from tensorstash.buffers import Array, aligned_empty, as_bytes
from tensorstash.codecs.payload import (
    BLOCK,
    HEADER_NBYTES,
    Header,
    check_count,
    check_data,
    damaged,
    empty_array,
    plain_payload,
    read_header,
    split_sections,
    unsigned,
)
from tensorstash.protocols import CodecKind
from tensorstash.spec import TensorSpec, opaque_bytes

MAGIC = b"NRW1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Narrow:
    """Store integers as their distance from the smallest one, in as many bytes as the largest distance needs.

    Known as frame of reference. Indices and token numbers, which frameworks hold in ``int64``, take 1, 2 or 4 bytes;
    a constant takes none.

    Payload: header (mode: bytes of a stored element, as many as in the tensor for plain; count elements), then the
    smallest element, and the distances.

    >>> from tensorstash.spec import TensorSpec
    >>> spec = TensorSpec((100,), (1,), 0, "int64", "cpu")
    >>> codec, data = Narrow(), np.arange(-50, 50)
    >>> codec.encode(data, spec).size, codec.decode(codec.encode(data, spec), spec).tolist() == data.tolist()
    (124, True)
    """

    name: ClassVar[str] = "narrow"
    lossless: ClassVar[bool] = True
    kind: ClassVar[CodecKind] = "array->array"

    def accepts(self, spec: TensorSpec, /) -> bool:
        """Whether the elements are integers of more than one byte."""
        return spec.kind in ("int", "uint") and spec.itemsize > 1

    def encoded_spec(self, spec: TensorSpec, /) -> TensorSpec:
        """Return a run of bytes, whose length depends on what the tensor holds."""
        return opaque_bytes(spec)

    def encode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the payload in fresh memory.

        Raises:
            CodecError: ``data`` is not what ``spec`` says, or of no accepted dtype.
        """
        check_data(self, data, spec)
        flat = data.reshape(-1)
        least, largest = _extremes(flat)
        width = _width(largest - least)
        header = Header(MAGIC, width, 0, flat.size)
        if width == spec.itemsize:
            return plain_payload(header, data)
        payload = aligned_empty(HEADER_NBYTES + spec.itemsize + width * flat.size)
        header.write(payload)
        base = payload[HEADER_NBYTES : HEADER_NBYTES + spec.itemsize].view(data.dtype)
        base[0] = least
        if width:
            _narrow(flat, base, payload[HEADER_NBYTES + spec.itemsize :].view(f"u{width}"))
        return payload

    def decode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the array in fresh memory.

        Raises:
            CodecError: the payload is not one of this codec and this spec.
        """
        header, body = read_header(self, data, MAGIC)
        check_count(self, header.count, spec)
        if header.mode not in (0, 1, 2, 4, 8) or header.mode > spec.itemsize or header.param:
            raise damaged(self, f"elements of {header.mode} bytes, {header.param}")
        array = empty_array(self, header.count, spec)
        if header.mode == spec.itemsize:
            split_sections(self, body, spec.nbytes)
            as_bytes(array)[:] = body
            return array
        target = unsigned(array)
        least, distances = split_sections(self, body, spec.itemsize, header.mode * header.count)
        base = least.view(target.dtype)
        if header.mode == 0:
            target[:] = base
        else:
            _widen(distances.view(f"u{header.mode}"), base, target)
        return array


def _extremes(flat: Array) -> tuple[int, int]:
    """Return the smallest and the largest integer as Python numbers, whose difference cannot overflow."""
    if not flat.size:
        return 0, 0
    if native.functions is not None:
        return native.functions.extremes(flat, flat.itemsize, flat.dtype.kind == "i")
    # Both of a block while it is in the cache.
    blocks = (flat[start : start + BLOCK] for start in range(0, flat.size, BLOCK))
    pairs = [(int(block.min()), int(block.max())) for block in blocks]
    return min(low for low, _ in pairs), max(high for _, high in pairs)


def _narrow(flat: Array, base: Array, stored: Array) -> None:
    if native.functions is not None and flat.size:
        native.functions.narrow_words(flat, base, stored)
        return
    for start in range(0, flat.size, BLOCK):
        target = stored[start : start + BLOCK]
        # Cutting off high bytes and subtracting commute.
        np.copyto(target, flat[start : start + BLOCK], casting="unsafe")
        target -= base.astype(target.dtype)


def _widen(stored: Array, base: Array, target: Array) -> None:
    if native.functions is not None and target.size:
        native.functions.widen_words(stored, base, target)
        return
    for start in range(0, target.size, BLOCK):
        block = target[start : start + BLOCK]
        np.copyto(block, stored[start : start + BLOCK])
        block += base


def _width(span: int) -> int:
    return next(width for width in (0, 1, 2, 4, 8) if span < 1 << (8 * width))
