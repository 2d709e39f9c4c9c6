"""The free bytes of a file, or of memory that is handed out in parts."""

from bisect import bisect_left, insort


class FreeSpace:
    """The free extents of one file or memory: best fit, lowest offset first among equals, neighbours joined.

    Every step costs one binary search and the shift of a list of free extents. Not thread-safe.
    """

    __slots__ = ("_end_of", "_start_of", "by_size", "free_bytes")

    def __init__(self, size: int = 0) -> None:
        self.by_size: list[tuple[int, int]] = []  # size and offset of each
        self._end_of: dict[int, int] = {}
        self._start_of: dict[int, int] = {}
        self.free_bytes = 0
        if size:
            self.give(0, size)

    def take(self, size: int) -> int | None:
        """Return the offset of ``size`` bytes that are free no longer, or None if no extent is that large."""
        index = bisect_left(self.by_size, (size, 0))
        if index == len(self.by_size):
            return None
        found, start = self.by_size.pop(index)
        end = self._end_of.pop(start)
        if found == size:
            del self._start_of[end]
        else:
            insort(self.by_size, (found - size, start + size))
            self._end_of[start + size], self._start_of[end] = end, start + size
        self.free_bytes -= size
        return start

    @property
    def largest(self) -> int:
        """Size of the largest free extent; 0 if nothing is free."""
        return self.by_size[-1][0] if self.by_size else 0

    def give(self, start: int, size: int) -> None:
        """Make ``size`` bytes at ``start`` free; they must not be free already."""
        end = start + size
        self.free_bytes += size
        if (before := self._start_of.pop(start, None)) is not None:
            del self.by_size[bisect_left(self.by_size, (start - before, before))]
            start = before
        if (after := self._end_of.pop(end, None)) is not None:
            del self.by_size[bisect_left(self.by_size, (after - end, end))]
            end = after
        insort(self.by_size, (end - start, start))
        self._end_of[start], self._start_of[end] = end, start

    def free_before(self, end: int) -> int:
        """Return the number of free bytes that end exactly at ``end``."""
        return end - self._start_of.get(end, end)
