"""Tensors that hold two values, such as the scales of dropout, at one bit per element."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tensorstash.codecs.payload import Shrinking, empty_array, split_sections
from tensorstash.host.arrays import Array, payload_empty
from tensorstash.kernels.masks import pack_two_values, packed_nbytes, unpack_two_values, unsigned
from tensorstash.spec import TensorSpec

MOST_VALUES = 2
_FIRST_ELEMENTS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class TwoValued(Shrinking):
    """Store tensors of at most two values at one bit per element, bit for bit.

    Every element is compared, as bits: -0 is not 0, and a NaN is equal to one of the same payload only. A tensor of
    more values, or of too few elements to get smaller, is passed on as it is.

    Payload: the two values and the bits, with the first element in the lowest bit and the last byte filled with zeros.

    >>> from tensorstash.spec import TensorSpec
    >>> spec = TensorSpec((4096,), (1,), 0, "float32", "cpu")
    >>> codec, data = TwoValued(), np.where(np.arange(4096) % 3, np.float32(1.25), 0)
    >>> payload = codec.encode(data, spec)
    >>> payload.size, bool((codec.decode(payload, spec) == data).all())
    (520, True)
    """

    name: ClassVar[str] = "two_valued"
    is_quick: ClassVar[bool] = True
    gives_way: ClassVar[bool] = True
    """Whether it looks for a rare content, and is left out of a plan for a codec of arrays that follows."""

    def accepts(self, spec: TensorSpec, /) -> bool:
        """Whether the elements are numbers of 1, 2, 4 or 8 bytes, of a tensor of known shape."""
        return spec.itemsize <= 8 and spec.shape != (-1,)

    def packed(self, data: Array, spec: TensorSpec, /) -> Array | None:
        """Return the payload, or None if there is a third value, or it would not be smaller."""
        bits = unsigned(data)
        nbytes, few = 2 * spec.itemsize + packed_nbytes(bits.size, 1), bits[:_FIRST_ELEMENTS]
        scratch = np.empty(packed_nbytes(few.size, 1), np.uint8)
        if nbytes >= data.nbytes or not pack_two_values(few, np.empty(2, bits.dtype), scratch):
            return None  # most tensors show it at once: before memory for all of them is asked for
        payload = payload_empty(nbytes)
        pair = payload[: 2 * spec.itemsize].view(bits.dtype)
        return payload if pack_two_values(bits, pair, payload[2 * spec.itemsize :]) else None

    def unpacked(self, payload: Array, spec: TensorSpec, /) -> Array:
        pair, packed = split_sections(self, payload, 2 * spec.itemsize, packed_nbytes(spec.numel, 1))
        array = empty_array(spec)
        target = unsigned(array)
        unpack_two_values(packed, pair.view(target.dtype), target)
        return array
