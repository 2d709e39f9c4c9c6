"""Booleans at one bit each."""

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
)
from tensorstash.protocols import CodecKind
from tensorstash.spec import TensorSpec, opaque_bytes

MAGIC = b"PBT1"


@dataclass(frozen=True, kw_only=True, slots=True)
class PackBits:
    """Store boolean tensors at one bit per element, bit for bit.

    A boolean whose byte is neither 0 nor 1, which frameworks produce by viewing or not initialising memory, would not
    come back as it was: a tensor that holds one is stored as it is.

    Payload: header (mode 0 plain, 1 packed; count elements), then the bytes, or the bits with the first element in
    the lowest bit and the last byte filled with zeros.

    >>> from tensorstash.spec import TensorSpec
    >>> spec = TensorSpec((10,), (1,), 0, "bool", "cpu")
    >>> payload = PackBits().encode(np.arange(10) == 9, spec)
    >>> payload[16:].tolist(), PackBits().decode(payload, spec).nonzero()[0].tolist()
    ([0, 2], [9])
    """

    name: ClassVar[str] = "pack_bits"
    lossless: ClassVar[bool] = True
    kind: ClassVar[CodecKind] = "array->array"

    def accepts(self, spec: TensorSpec, /) -> bool:
        """Whether the elements are booleans."""
        return spec.kind == "bool"

    def encoded_spec(self, spec: TensorSpec, /) -> TensorSpec:
        """Return a run of bytes, whose length depends on what the tensor holds."""
        return opaque_bytes(spec)

    def encode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the payload in fresh memory.

        Raises:
            CodecError: ``data`` is not what ``spec`` says, or not boolean.
        """
        payload = self.packed(data, spec)
        return plain_payload(Header(MAGIC, PLAIN, 0, data.size), data) if payload is None else payload

    def packed(self, data: Array, spec: TensorSpec, /) -> Array | None:
        """Return the payload, or None if a byte is neither 0 nor 1.

        Raises:
            CodecError: as of :meth:`encode`.
        """
        check_data(self, data, spec)
        flags = as_bytes(data)
        payload = aligned_empty(HEADER_NBYTES + -(-flags.size // 8))
        Header(MAGIC, CODED, 0, flags.size).write(payload)
        if not _pack(flags, payload[HEADER_NBYTES:]):
            return None
        return payload

    def decode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the booleans in fresh memory.

        Raises:
            CodecError: the payload is not one of this codec and this spec.
        """
        header, body = read_header(self, data, MAGIC)
        check_count(self, header.count, spec)
        if header.mode not in (PLAIN, CODED) or header.param:
            raise damaged(self, f"unknown mode {header.mode}, {header.param}")
        split_sections(self, body, header.count if header.mode == PLAIN else -(-header.count // 8))
        array = empty_array(self, header.count, spec)
        flags = as_bytes(array)
        if header.mode == PLAIN:
            flags[:] = body
            return array
        _unpack(body, flags)
        return array


def _pack(flags: Array, packed: Array) -> bool:
    if native.functions is not None:
        return native.functions.pack_booleans(flags, packed)
    for start in range(0, flags.size, 8 * BLOCK):
        block = flags[start : start + 8 * BLOCK]
        if np.bitwise_or.reduce(block) > 1:
            return False
        bits = np.packbits(block, bitorder="little")
        packed[start // 8 : start // 8 + bits.size] = bits
    return True


def _unpack(packed: Array, flags: Array) -> None:
    if native.functions is not None:
        native.functions.unpack_booleans(packed, flags)
        return
    for start in range(0, flags.size, 8 * BLOCK):
        block = flags[start : start + 8 * BLOCK]
        bits = packed[start // 8 : start // 8 + BLOCK]
        block[:] = np.unpackbits(bits, count=block.size, bitorder="little")
