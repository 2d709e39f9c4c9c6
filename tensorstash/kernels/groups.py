"""Groups of neighbours along the last dimension of an array."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tensorstash.host.arrays import Array

BLOCK = 1 << 16  # elements that are worked on at a time, so that temporaries of NumPy stay in the cache


@dataclass(frozen=True, slots=True)
class Block:
    """Groups of one width that are worked on together, as rows of a matrix; ``groups`` are their numbers in a row."""

    rows: slice
    columns: slice
    groups: slice
    width: int

    def elements(self, array: Array) -> Array:
        """Return the elements of the groups, one group to a row; ``array`` has all rows."""
        return array[self.rows, self.columns].reshape(-1, self.width)

    def places(self, length: int) -> Array:
        """Return where the elements are in an array of rows of a length, in C order."""
        number = np.uint32 if self.rows.stop * length < 2**32 else np.uint64
        rows, columns = (np.arange(each.start, each.stop, dtype=number) for each in (self.rows, self.columns))
        return (rows[:, None] * number(length) + columns).reshape(-1, self.width)

    def put(self, elements: Array, array: Array) -> None:
        """Write the elements of the groups where they belong."""
        target = array[self.rows, self.columns]
        target[...] = elements.reshape(target.shape)


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of an array: up to ``size`` neighbours each, in C order.

    A group never crosses a row, whose last group may be shorter. A row is the last dimension, or, where that holds
    less than one group, as many trailing dimensions as it takes: groups of the four columns of an image would need
    more room for their parameters than for their codes.
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

    def blocks(self) -> Iterator[Block]:
        """Yield all groups, at most :data:`BLOCK` elements at once: the whole ones, then the shorter ends of rows."""
        whole, rest = divmod(self.length, self.size)
        for first, stop, width in ((0, whole, self.size), (whole, self.per_row, rest)):
            across = min(max(BLOCK // max(width, 1), 1), stop - first)
            down = BLOCK // (across * width) or 1 if across else 1
            for group in range(first, stop, across or 1):
                groups = slice(group, min(group + across, stop))
                columns = slice(group * self.size, min(groups.stop * self.size, self.length))
                for row in range(0, self.rows, down):
                    yield Block(slice(row, min(row + down, self.rows)), columns, groups, width)
