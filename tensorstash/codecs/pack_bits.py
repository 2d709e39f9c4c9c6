"""Booleans at one bit each."""

from dataclasses import dataclass
from typing import ClassVar

from tensorstash import kernels
from tensorstash.codecs.wire.format import (
    CODED,
    HEADER_NBYTES,
    PLAIN,
    Header,
    check_data,
    empty_array,
    open_payload,
    plain_payload,
    split_sections,
)
from tensorstash.host.arrays import Array, as_bytes, payload_empty
from tensorstash.kernels.bits import packed_nbytes
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

    >>> import numpy as np
    >>> from tensorstash.spec import TensorSpec
    >>> spec = TensorSpec((10,), (1,), 0, "bool", "cpu")
    >>> payload = PackBits().encode(np.arange(10) == 9, spec)
    >>> payload[16:].tolist(), PackBits().decode(payload, spec).nonzero()[0].tolist()
    ([0, 2], [9])
    """

    name: ClassVar[str] = "pack_bits"
    lossless: ClassVar[bool] = True
    kind: ClassVar[CodecKind] = "array->array"
    is_quick: ClassVar[bool] = True
    """Whether it takes hardly longer than a copy."""

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
        payload = payload_empty(HEADER_NBYTES + packed_nbytes(flags.size, 1))
        Header(MAGIC, CODED, 0, flags.size).write(payload)
        if not kernels.active.pack_booleans(flags, payload[HEADER_NBYTES:]):
            return None
        return payload

    def decode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the booleans in fresh memory."""
        header, body, plain = open_payload(self, data, spec, MAGIC)
        if plain is not None:
            return plain
        split_sections(self, body, packed_nbytes(header.count, 1))
        array = empty_array(self, header.count, spec)
        kernels.active.unpack_booleans(body, as_bytes(array))
        return array
