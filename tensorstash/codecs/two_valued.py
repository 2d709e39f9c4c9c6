"""Tensors that hold two values, such as the scales of dropout, at one bit per element."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tensorstash import native
from tensorstash.buffers import Array, aligned_empty, as_bytes
from tensorstash.codecs.payload import (
    BLOCK,
    CODED,
    HEADER_NBYTES,
    PLAIN,
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

MAGIC = b"TWO1"
_FEW = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class TwoValued:
    """Store tensors of at most two values at one bit per element, bit for bit.

    Every element is compared, as bits: -0 is not 0, and a NaN is equal to one of the same payload only. A tensor of
    more values is stored as it is; finding that out takes until the first block that holds a third.

    Payload: header (mode 0 plain, 1 packed; count elements), then the bytes; or the two values and the bits, with the
    first element in the lowest bit and the last byte filled with zeros.

    >>> from tensorstash.spec import TensorSpec
    >>> spec = TensorSpec((4096,), (1,), 0, "float32", "cpu")
    >>> codec, data = TwoValued(), np.where(np.arange(4096) % 3, np.float32(1.25), 0)
    >>> payload = codec.encode(data, spec)
    >>> payload.size, bool((codec.decode(payload, spec) == data).all())
    (536, True)
    """

    name: ClassVar[str] = "two_valued"
    lossless: ClassVar[bool] = True
    kind: ClassVar[CodecKind] = "array->array"

    def accepts(self, spec: TensorSpec, /) -> bool:
        """Whether the elements are numbers of 1, 2, 4 or 8 bytes, of a tensor of known shape."""
        return spec.itemsize <= 8 and spec.shape != (-1,)

    def encoded_spec(self, spec: TensorSpec, /) -> TensorSpec:
        """Return a run of bytes, whose length depends on what the tensor holds."""
        return opaque_bytes(spec)

    def encode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the payload in fresh memory.

        Raises:
            CodecError: ``data`` is not what ``spec`` says, or of no accepted dtype.
        """
        payload = self.packed(data, spec)
        return plain_payload(Header(MAGIC, PLAIN, 0, data.size), data) if payload is None else payload

    def packed(self, data: Array, spec: TensorSpec, /) -> Array | None:
        """Return the payload, or None if there is a third value.

        Raises:
            CodecError: as of :meth:`encode`.
        """
        check_data(self, data, spec)
        bits = unsigned(data)
        few = bits[:_FEW]
        if not _pack(few, np.empty(2, bits.dtype), np.empty(-(-few.size // 8), np.uint8)):
            return None  # most tensors show it at once: before memory for all of them is asked for
        payload = aligned_empty(HEADER_NBYTES + 2 * spec.itemsize + -(-bits.size // 8))
        Header(MAGIC, CODED, 0, bits.size).write(payload)
        pair = payload[HEADER_NBYTES : HEADER_NBYTES + 2 * spec.itemsize].view(bits.dtype)
        return payload if _pack(bits, pair, payload[HEADER_NBYTES + 2 * spec.itemsize :]) else None

    def decode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the array in fresh memory.

        Raises:
            CodecError: the payload is not one of this codec and this spec.
        """
        header, body = read_header(self, data, MAGIC)
        check_count(self, header.count, spec)
        if header.mode not in (PLAIN, CODED) or header.param:
            raise damaged(self, f"unknown mode {header.mode}, {header.param}")
        array = empty_array(self, header.count, spec)
        if header.mode == PLAIN:
            split_sections(self, body, spec.nbytes)
            as_bytes(array)[:] = body
            return array
        target = unsigned(array)
        pair, packed = split_sections(self, body, 2 * spec.itemsize, -(-target.size // 8))
        _unpack(packed, pair.view(target.dtype), target)
        return array


def _pack(bits: Array, pair: Array, packed: Array) -> bool:
    if native.functions is not None:
        return native.functions.pack_two_values(bits, pair, packed)
    pair[:] = bits[0] if bits.size else 0
    found = False
    for start in range(0, bits.size, BLOCK):
        block = bits[start : start + BLOCK]
        second = block != pair[0]
        if not found and second.any():
            found, pair[1] = True, block[second.argmax()]
        if found and not np.array_equal(block == pair[1], second):
            return False
        ones = np.packbits(second, bitorder="little")
        packed[start // 8 : start // 8 + ones.size] = ones
    return True


def _unpack(packed: Array, pair: Array, target: Array) -> None:
    if native.functions is not None:
        native.functions.unpack_two_values(packed, pair, target)
        return
    first, second = pair
    with np.errstate(over="ignore"):
        step = second - first
    for start in range(0, target.size, BLOCK):
        block = target[start : start + BLOCK]
        ones = packed[start // 8 : start // 8 + BLOCK // 8]
        block[:] = np.unpackbits(ones, count=block.size, bitorder="little")
        block *= step
        block += first
