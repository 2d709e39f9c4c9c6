"""Groups of neighbours along the last dimension of an array, and the extremes of each group."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tensorstash.host.arrays import Array

BLOCK = 1 << 16
"""Elements that are worked on at a time, so that temporaries of NumPy stay in the cache."""


@dataclass(frozen=True, slots=True)
class Run:
    """Whole groups that lie next to one another and are worked on together.

    Args:
        start: index of the first element in the flat array.
        first: number of the first group.
        starts: index of the first element of every group, from ``start`` on.
        sizes: elements of every group.
        size: elements of a group if all are equal, else 0.
    """

    start: int
    first: int
    starts: Array
    sizes: Array
    size: int

    @property
    def length(self) -> int:
        """Elements of the run."""
        return int(self.starts[-1] + self.sizes[-1])

    @property
    def elements(self) -> slice:
        """The indices of the elements in the flat array."""
        return slice(self.start, self.start + self.length)

    @property
    def groups(self) -> slice:
        """The numbers of the groups."""
        return slice(self.first, self.first + self.starts.size)

    def spread(self, values: Array, out: Array) -> None:
        """Write one value per group into ``out``, once for each element of the group."""
        if self.size:
            np.copyto(out.reshape(-1, self.size), values[:, None])
        else:
            out[:] = np.repeat(values, self.sizes)


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of an array: up to ``size`` neighbours each, in C order.

    A group never crosses a row, whose last group may be shorter. A row is the last dimension, or, where that holds
    less than one group, as many trailing dimensions as it takes: groups of the four columns of an image would need
    more room for their parameters than for their codes.

    Args:
        rows: number of rows.
        length: elements of a row.
        size: elements of a group.

    >>> Groups.of((2, 300), 128)
    Groups(rows=2, length=300, size=128)
    >>> Groups.of((8, 7, 7, 4), 128).length, Groups.of((5, 64), 64).rows, Groups.of((), 8).count
    (196, 5, 1)
    """

    rows: int
    length: int
    size: int

    @classmethod
    def of(cls, shape: tuple[int, ...], size: int) -> "Groups":
        """Return the groups of an array of this shape."""
        if 0 in shape:
            return cls(0, size, size)
        length, rows = 1, 1
        for width in reversed(shape):
            if length < size:
                length *= width
            else:
                rows *= width
        return cls(rows, length, size)

    @property
    def per_row(self) -> int:
        """Groups of a row."""
        return -(-self.length // self.size)

    @property
    def count(self) -> int:
        """Groups of the array."""
        return self.rows * self.per_row

    def sizes(self) -> Array:
        """Return the number of elements of every group of the array."""
        return np.tile(self._row_sizes(), self.rows)

    def longest(self) -> int:
        """Return the elements of the longest run."""
        if self.length > BLOCK:
            return min(self.length, max(BLOCK // self.size, 1) * self.size)
        return self.length * min(self.rows, BLOCK // self.length)

    def runs(self) -> Iterator[Run]:
        """Yield all groups, in runs of at most :data:`~tensorstash.kernels.groups.BLOCK` elements, or of one group."""
        row = self._row_sizes()
        if self.length <= BLOCK:
            step = BLOCK // self.length
            sizes = np.tile(row, min(step, self.rows))
            starts = np.cumsum(sizes) - sizes
            uniform = self.size if self.length % self.size == 0 else self.length if self.per_row == 1 else 0
            for r in range(0, self.rows, step):
                some = slice(min(step, self.rows - r) * self.per_row)
                yield Run(r * self.length, r * self.per_row, starts[some], sizes[some], uniform)
            return
        step = max(BLOCK // self.size, 1)
        for r in range(self.rows):
            for first in range(0, self.per_row, step):
                sizes = row[first : first + step]
                uniform = self.size if sizes[-1] == self.size else 0
                starts = np.cumsum(sizes) - sizes
                yield Run(r * self.length + first * self.size, r * self.per_row + first, starts, sizes, uniform)

    def _row_sizes(self) -> Array:
        sizes = np.full(self.per_row, self.size)
        sizes[-1:] = self.length - (self.per_row - 1) * self.size
        return sizes


def extremes(values: Array, starts: Array) -> tuple[Array, Array]:
    """Return the smallest and the largest element of every group; a NaN of either sign is beyond infinity.

    The bits are compared as integers, which NumPy does more than twice as fast as comparing floats, and which no
    flush-to-zero mode changes: as signed integers, positive floats are in order and above all negative ones; as
    unsigned integers, negative floats are in reverse order and above all positive ones.

    Args:
        values: flat floats of 4 or 8 bytes.
        starts: index of the first element of every group.
    """
    signed, raw = values.view(f"i{values.itemsize}"), values.view(f"u{values.itemsize}")
    largest = np.maximum.reduceat(signed, starts)
    if largest.size and largest.min() < 0:
        np.copyto(largest, np.minimum.reduceat(raw, starts).view(signed.dtype), where=largest < 0)
    smallest = np.maximum.reduceat(raw, starts)
    sign = raw.dtype.type(1 << (8 * values.itemsize - 1))
    if smallest.size and smallest.min() < sign:
        np.copyto(smallest, np.minimum.reduceat(signed, starts).view(raw.dtype), where=smallest < sign)
    return smallest.view(values.dtype), largest.view(values.dtype)
