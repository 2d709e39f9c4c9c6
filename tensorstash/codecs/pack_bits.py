"""Booleans at one bit each."""

from dataclasses import dataclass
from typing import ClassVar

from tensorstash.codecs.payload import Shrinking, check_run, empty_array
from tensorstash.host.arrays import Array, as_bytes, payload_empty
from tensorstash.kernels.masks import pack_booleans, packed_nbytes, unpack_booleans
from tensorstash.spec import TensorSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class PackBits(Shrinking):
    """Store boolean tensors at one bit per element, bit for bit.

    A boolean whose byte is neither 0 nor 1, which frameworks produce by viewing or not initialising memory, would not
    come back as it was: a tensor that holds one is passed on as it is.

    Payload: the bits, with the first element in the lowest bit and the last byte filled with zeros.

    >>> import numpy as np
    >>> from tensorstash.spec import TensorSpec
    >>> spec = TensorSpec((10,), (1,), 0, "bool", "cpu")
    >>> payload = PackBits().encode(np.arange(10) == 9, spec)
    >>> payload.tolist(), PackBits().decode(payload, spec).nonzero()[0].tolist()
    ([0, 2], [9])
    """

    name: ClassVar[str] = "pack_bits"
    is_quick: ClassVar[bool] = True

    def accepts(self, spec: TensorSpec, /) -> bool:
        """Whether the elements are booleans."""
        return spec.kind == "bool"

    def packed(self, data: Array, spec: TensorSpec, /) -> Array | None:
        """Return the payload, or None if a byte is neither 0 nor 1, or there are too few to get smaller."""
        flags = as_bytes(data)
        nbytes = packed_nbytes(flags.size, 1)
        if nbytes >= flags.size:
            return None
        payload = payload_empty(nbytes)
        return payload if pack_booleans(flags, payload) else None

    def unpacked(self, payload: Array, spec: TensorSpec, /) -> Array:
        check_run(self, payload, packed_nbytes(spec.numel, 1))
        array = empty_array(spec)
        unpack_booleans(payload, as_bytes(array))
        return array
