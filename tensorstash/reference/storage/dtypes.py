"""Element types: the carrier in memory and the type that kernels compute with."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class DType:
    """One element type: the NumPy types of stored elements and of those that kernels see.

    bfloat16 is stored as uint16. It and float16 compute through float32 and round once.
    """

    name: str
    carrier: np.dtype[Any]
    compute: np.dtype[Any]

    @property
    def itemsize(self) -> int:
        return self.carrier.itemsize

    @property
    def is_differentiable(self) -> bool:
        return self.compute.kind == "f"

    def decode(self, stored: Array) -> Array:
        """Give stored elements as compute elements; a view where the two types are one."""
        if self.name == "bfloat16":
            return (stored.astype(np.uint32) << 16).view(np.float32)
        return stored.astype(self.compute, copy=False)

    def encode(self, values: Array) -> Array:
        """Give compute elements as stored elements, rounding to nearest even; a view where possible."""
        if self.name == "bfloat16":
            return _round_to_bfloat16(values.astype(np.float32, copy=False))
        return values.astype(self.carrier, copy=False)

    def __repr__(self) -> str:
        return self.name


def _round_to_bfloat16(values: Array) -> Array:
    bits = np.asarray(values).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16
    quiet_nan = (bits >> 16) | np.uint32(0x40)
    return np.where(np.isnan(values), quiet_nan, rounded).astype(np.uint16)


_PLAIN = ("bool", *(f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64)))
_PLAIN += ("float32", "float64", "complex64", "complex128")
DTYPES = MappingProxyType(
    {name: DType(name, np.dtype(name), np.dtype(name)) for name in _PLAIN}
    | {"float16": DType("float16", np.dtype(np.float16), np.dtype(np.float32))}
    | {"bfloat16": DType("bfloat16", np.dtype(np.uint16), np.dtype(np.float32))}
)
"""Every element type by name."""

DTypeLike: TypeAlias = "DType | str | np.dtype[Any]"


def as_dtype(value: DTypeLike) -> DType:
    """Give the element type for a name, a NumPy dtype or a DType; refuse others with a `TypeError`.

    >>> as_dtype("bfloat16").carrier
    dtype('uint16')
    """
    name = value if isinstance(value, str) else value.name
    if name not in DTYPES:
        raise TypeError(f"no element type {name!r}; expected one of {', '.join(DTYPES)}")
    return DTYPES[name]
