"""Tensors of many zeros, such as the outputs of ReLU and masked attention, as a bit mask and the rest."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tensorstash.codecs.payload import Shrinking, check_run, damaged, empty_array, split_sections
from tensorstash.codecs.zstd import compressed_rows, read_row, stored_rows, total_size
from tensorstash.host.arrays import Array, payload_empty
from tensorstash.kernels.masks import gather_masked, mask_nonzero, packed_nbytes, scatter_masked, unsigned
from tensorstash.spec import TensorSpec

_COUNT_NBYTES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Sparse(Shrinking):
    """Store which elements are not zero, at one bit each, and those elements.

    Zero means all bits zero: -0 is stored. The mask is compressed with Zstandard where a sample shows that to help,
    as with causal attention. A tensor that does not get smaller is passed on as it is.

    Payload: the number of elements not zero as ``uint64``, these elements, and the mask, with the first element in the
    lowest bit, as one stored row of :class:`~tensorstash.codecs.zstd.Zstd`.

    >>> from tensorstash.spec import TensorSpec
    >>> spec = TensorSpec((1000,), (1,), 0, "float32", "cpu")
    >>> codec, data = Sparse(), np.maximum(np.arange(-900, 100, dtype=np.float32), 0)
    >>> payload = codec.encode(data, spec)
    >>> payload.size <= 16 + 99 * 4 + 125, bool((codec.decode(payload, spec) == data).all())
    (True, True)
    """

    name: ClassVar[str] = "sparse"

    def accepts(self, spec: TensorSpec, /) -> bool:
        """Whether the elements are numbers of 2, 4 or 8 bytes."""
        return 2 <= spec.itemsize <= 8

    def packed(self, data: Array, spec: TensorSpec, /) -> Array | None:
        bits = unsigned(data)
        mask = np.empty(packed_nbytes(bits.size, 1), np.uint8)
        count = mask_nonzero(bits, mask)
        end = _COUNT_NBYTES + count * spec.itemsize
        parts = compressed_rows([mask], 1)
        nbytes = end + total_size(parts)
        if nbytes >= data.nbytes:
            return None
        payload = payload_empty(nbytes)
        payload[:_COUNT_NBYTES].view("<u8")[:] = count
        gather_masked(bits, mask, payload[_COUNT_NBYTES:end].view(bits.dtype))
        np.concatenate(parts, out=payload[end:])
        return payload

    def unpacked(self, payload: Array, spec: TensorSpec, /) -> Array:
        check_run(self, payload, at_least=_COUNT_NBYTES)
        (count,) = payload[:_COUNT_NBYTES].view("<u8").tolist()
        if count > spec.numel:
            raise damaged(self, f"{count} of {spec.numel} elements are not zero")
        body = payload[_COUNT_NBYTES:]
        end = count * spec.itemsize
        values, stored = split_sections(self, body, end, max(body.size - end, 0))
        mask = np.empty(packed_nbytes(spec.numel, 1), np.uint8)
        (row,) = stored_rows(self, stored, 1)
        read_row(self, row, mask)
        array = empty_array(spec)
        bits = unsigned(array)
        if not scatter_masked(values.view(bits.dtype), mask, bits):
            raise damaged(self, f"the mask has not {count} ones")
        return array
