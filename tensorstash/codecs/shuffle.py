"""Byte shuffle: the bytes of each element apart, so that those which resemble one another lie together."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tensorstash.codecs.payload import check_data, check_shape, empty_array
from tensorstash.host.arrays import Array, aligned_empty, as_bytes
from tensorstash.protocols import CodecKind
from tensorstash.spec import TensorSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Shuffle:
    """Shuffle bytes: ``(...)`` of several bytes each becomes ``uint8 (itemsize, numel)``, one byte plane per byte.

    Plane k holds byte k of every element, the least significant first; the sign and most of the exponent of floats
    are in the last one. Nothing is compressed: put :class:`~tensorstash.codecs.zstd.Zstd` behind it. This is the
    shuffle filter of HDF5 and Blosc.

    >>> from tensorstash.spec import TensorSpec
    >>> spec = TensorSpec((2,), (1,), 0, "int16", "cpu")
    >>> Shuffle().encode(np.array([1, 258], np.int16), spec).tolist()
    [[1, 2], [0, 1]]
    """

    name: ClassVar[str] = "shuffle"
    lossless: ClassVar[bool] = True
    kind: ClassVar[CodecKind] = "array->array"

    def accepts(self, spec: TensorSpec, /) -> bool:
        """Whether the elements have more than one byte."""
        return spec.itemsize > 1

    def encoded_spec(self, spec: TensorSpec, /) -> TensorSpec:
        """Return ``uint8 (itemsize, numel)``."""
        return replace(spec, shape=(spec.itemsize, spec.numel), strides=(spec.numel, 1), dtype="uint8")

    def encode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the planes in fresh memory.

        Raises:
            CodecError: ``data`` does not match ``spec``, or its elements are single bytes.
        """
        check_data(self, data, spec)
        elements = as_bytes(data).reshape(spec.numel, spec.itemsize)
        planes = aligned_empty(spec.nbytes).reshape(spec.itemsize, spec.numel)
        for k in range(spec.itemsize):
            np.copyto(planes[k], elements[:, k])
        return planes

    def decode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the elements in fresh memory.

        Raises:
            CodecError: the planes are not those of ``spec``.
        """
        check_shape(self, data, self.encoded_spec(spec))
        array = empty_array(spec)
        elements = as_bytes(array).reshape(spec.numel, spec.itemsize)
        for k in range(spec.itemsize):
            np.copyto(elements[:, k], data[k])
        return array
