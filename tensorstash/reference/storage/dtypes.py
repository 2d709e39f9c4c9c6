"""Element types: those of NumPy, and bfloat16, whose bits are carried and not computed with."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class DType:
    """One element type, and the NumPy type of its stored elements, which is uint16 for bfloat16."""

    name: str
    carrier: np.dtype[Any]

    @property
    def itemsize(self) -> int:
        return self.carrier.itemsize

    @property
    def is_computed(self) -> bool:
        """Whether NumPy computes with it."""
        return self.name == self.carrier.name

    @property
    def is_differentiable(self) -> bool:
        return self.carrier.kind == "f"

    def __repr__(self) -> str:
        return self.name


_NAMES = ("bool", *(f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64)))
_NAMES += ("float16", "float32", "float64", "complex64", "complex128")
DTYPES = MappingProxyType(
    {name: DType(name, np.dtype(name)) for name in _NAMES} | {"bfloat16": DType("bfloat16", np.dtype(np.uint16))}
)
"""Every element type by name."""

DTypeLike: TypeAlias = "DType | str | np.dtype[Any]"


def as_dtype(value: DTypeLike) -> DType:
    """Give the element type for a name, a NumPy dtype or a DType; refuse others with a `TypeError`."""
    name = value if isinstance(value, str) else value.name
    if name not in DTYPES:
        raise TypeError(f"no element type {name!r}; expected one of {', '.join(DTYPES)}")
    return DTYPES[name]
