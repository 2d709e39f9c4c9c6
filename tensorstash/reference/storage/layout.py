"""Stride arithmetic: where the elements of a tensor lie inside its storage."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tensorstash.reference.storage.dtypes import Array

Shape: TypeAlias = tuple[int, ...]


def repeats(shape: Shape, strides: Shape) -> bool:
    """Tell whether a step of 0 leads to one element by several indices."""
    return 0 not in shape and any(size > 1 and step == 0 for size, step in zip(shape, strides, strict=True))


@dataclass(frozen=True, slots=True)
class Layout:
    """Shape, strides in elements, and position of a tensor in its storage: the byte offset of its first element.

    Steps of 0 (expand), gaps and negative steps are allowed; the last lead to elements before the first.
    """

    shape: Shape
    strides: Shape
    offset: int
    itemsize: int

    def __post_init__(self) -> None:
        if self.begin < 0:
            raise ValueError(f"shape {self.shape}, strides {self.strides} and offset {self.offset} lead before byte 0")

    @staticmethod
    def contiguous(shape: Sequence[int], itemsize: int, offset: int = 0) -> Layout:
        """Give the dense row-major layout of `shape`."""
        shape = tuple(shape)
        strides = tuple(math.prod(max(size, 1) for size in shape[axis + 1 :]) for axis in range(len(shape)))
        return Layout(shape, strides, offset, itemsize)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def byte_strides(self) -> Shape:
        return tuple(stride * self.itemsize for stride in self.strides)

    @property
    def begin(self) -> int:
        """The first byte the layout touches; its offset if it touches none."""
        return self.offset + self._reach(min) if self.numel and min(self.strides, default=0) < 0 else self.offset

    @property
    def end(self) -> int:
        """One past the last byte the layout touches; 0 if it touches none."""
        return self.offset + self._reach(max) + self.itemsize if self.numel else 0

    def _reach(self, side: Callable[[int, int], int]) -> int:
        steps = zip(self.shape, self.strides, strict=True)
        return self.itemsize * sum((size - 1) * side(step, 0) for size, step in steps)

    @property
    def is_contiguous(self) -> bool:
        dense = Layout.contiguous(self.shape, self.itemsize).strides
        strides = zip(self.shape, self.strides, dense, strict=True)
        return self.numel == 0 or all(size == 1 or stride == step for size, stride, step in strides)

    def viewed(self, view: Callable[[Array], Array]) -> Layout:
        """Return the layout that NumPy gives a view of an array of this one."""
        nowhere = as_strided(np.empty(1, f"V{self.itemsize}"), self.shape, self.byte_strides)  # is never read
        found = view(nowhere)
        start = self.offset + found.ctypes.data - nowhere.ctypes.data if found.size else self.offset
        return Layout(found.shape, tuple(step // self.itemsize for step in found.strides), start, self.itemsize)
