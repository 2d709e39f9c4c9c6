"""Tensors of many zeros, such as the outputs of ReLU and masked attention, as a bit mask and the rest."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tensorstash import kernels
from tensorstash.codecs.float_split import FloatSplit
from tensorstash.codecs.wire.entropy import Compressor, Decompressor
from tensorstash.codecs.wire.format import (
    HEADER_NBYTES,
    Header,
    check_choice,
    check_data,
    damaged,
    empty_array,
    open_payload,
    plain_payload,
    split_sections,
)
from tensorstash.errors import CodecError
from tensorstash.host.arrays import Array, payload_empty
from tensorstash.kernels.bits import packed_nbytes
from tensorstash.kernels.integers import unsigned
from tensorstash.protocols import CodecKind
from tensorstash.spec import TensorSpec, opaque_bytes

MAGIC = b"SPR1"
_PLAIN, _VALUES, _CODED = 0, 1, 2
_TABLE_NBYTES = 24
_FLOATS = FloatSplit()


@dataclass(frozen=True, kw_only=True, slots=True)
class Sparse:
    """Store which elements are not zero, at one bit each, and those elements.

    Zero means all bits zero: -0 is stored. The mask is compressed with Zstandard where a sample shows that to help,
    as with causal attention.

    Payload: header (mode 0 plain, 1 values, 2 coded values; count elements), then the bytes; or the number of
    elements not zero, the stored length of them, and of the mask, as ``uint64``, the elements (in mode 2 as
    :class:`~tensorstash.codecs.float_split.FloatSplit` codes them), and the mask, with the first element in the lowest
    bit, as it is or as Zstandard frames if they are shorter.

    Args:
        split_floats: whether the exponents of what is not zero are compressed as well, where that is floats: smaller,
            and slower in proportion to what is not zero.

    Raises:
        ConfigError: neither True nor False.

    >>> from tensorstash.spec import TensorSpec
    >>> spec = TensorSpec((1000,), (1,), 0, "float32", "cpu")
    >>> codec, data = Sparse(split_floats=False), np.maximum(np.arange(-900, 100, dtype=np.float32), 0)
    >>> payload = codec.encode(data, spec)
    >>> payload.size <= 40 + 99 * 4 + 125, bool((codec.decode(payload, spec) == data).all())
    (True, True)
    """

    name: ClassVar[str] = "sparse"
    lossless: ClassVar[bool] = True
    kind: ClassVar[CodecKind] = "array->array"

    split_floats: bool = False

    def __post_init__(self) -> None:
        check_choice("sparse.split_floats", self.split_floats, (False, True))

    def accepts(self, spec: TensorSpec, /) -> bool:
        """Whether the elements are numbers of 2, 4 or 8 bytes."""
        return 2 <= spec.itemsize <= 8

    def encoded_spec(self, spec: TensorSpec, /) -> TensorSpec:
        """Return a run of bytes, whose length depends on what the tensor holds."""
        return opaque_bytes(spec)

    def encode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the payload in fresh memory."""
        check_data(self, data, spec)
        bits = unsigned(data)
        mask = np.empty(packed_nbytes(bits.size, 1), np.uint8)
        total = kernels.active.mask_nonzero(bits, mask)
        inner = _values_spec(spec, total)
        masks = Compressor(1).compress(mask)
        mask_length = sum(frame.size for frame in masks)
        coded = _coded_values(bits, mask, inner) if self.split_floats and _FLOATS.accepts(inner) else None
        length = inner.nbytes if coded is None else coded.size
        if _TABLE_NBYTES + length + mask_length >= data.nbytes:
            return plain_payload(Header(MAGIC, _PLAIN, 0, bits.size), data)
        payload = payload_empty(HEADER_NBYTES + _TABLE_NBYTES + length + mask_length)
        Header(MAGIC, _VALUES if coded is None else _CODED, 0, bits.size).write(payload)
        table, values, end = split_sections(self, payload[HEADER_NBYTES:], _TABLE_NBYTES, length, mask_length)
        table.view("<u8")[:] = total, length, mask_length
        if coded is None:
            kernels.active.gather_masked(bits, mask, values.view(bits.dtype))
        else:
            values[:] = coded
        np.concatenate(masks, out=end)
        return payload

    def decode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the array in fresh memory."""
        header, body, plain = open_payload(self, data, spec, MAGIC, modes=(_PLAIN, _VALUES, _CODED))
        if plain is not None:
            return plain
        array = empty_array(self, header.count, spec)
        if body.size < _TABLE_NBYTES:
            raise damaged(self, f"{body.size} bytes are too few for the lengths of the sections")
        total, length, mask_length = body[:_TABLE_NBYTES].view("<u8").tolist()
        section, stored_mask = split_sections(self, body[_TABLE_NBYTES:], length, mask_length)
        inner = _values_spec(spec, total)
        if total > header.count:
            raise damaged(self, f"{total} of {header.count} elements are not zero")
        if header.mode == _CODED:
            try:
                values = _FLOATS.decode(section, inner)
            except CodecError as error:
                raise error.at(repr(self)) from error
        else:
            (values,) = split_sections(self, section, inner.nbytes)
        mask = stored_mask
        if mask.size != packed_nbytes(header.count, 1):
            mask = np.empty(packed_nbytes(header.count, 1), np.uint8)
            frame = Decompressor(self, stored_mask)
            frame.read_into(mask)
            frame.finish()
        bits = unsigned(array)
        if not kernels.active.scatter_masked(values.view(bits.dtype), mask, bits):
            raise damaged(self, f"the mask has not {total} ones")
        return array


def _values_spec(spec: TensorSpec, count: int) -> TensorSpec:
    return replace(spec, shape=(count,), strides=(1,))


def _coded_values(bits: Array, mask: Array, inner: TensorSpec) -> Array:
    values = np.empty(inner.shape, bits.dtype)
    kernels.active.gather_masked(bits, mask, values)
    return _FLOATS.encode(values.view(inner.carrier), inner)
