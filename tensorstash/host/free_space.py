"""The free bytes of a file, or of memory that is handed out in parts."""

from bisect import bisect_left, insort


class FreeSpace:
    """The free extents of one file or memory: best fit, lowest offset first among equals, neighbours joined.

    Every step costs one binary search and the shift of a list of free extents. Not thread-safe.

    >>> space = FreeSpace(100)
    >>> space.take(30), space.take(30), space.take(50)
    (0, 30, None)
    >>> space.give(0, 30)
    >>> space.largest, space.free_bytes
    (40, 70)
    """

    __slots__ = ("_by_size", "_end_of", "_start_of", "free_bytes")

    def __init__(self, size: int = 0) -> None:
        self._by_size: list[tuple[int, int]] = []
        self._end_of: dict[int, int] = {}
        self._start_of: dict[int, int] = {}
        self.free_bytes = 0
        if size:
            self.give(0, size)

    def take(self, size: int) -> int | None:
        """Return the offset of ``size`` bytes that are free no longer, or None if no extent is that large."""
        index = bisect_left(self._by_size, (size, 0))
        if index == len(self._by_size):
            return None
        found, start = self._by_size[index]
        self._remove(start, start + found)
        if found > size:
            self._add(start + size, start + found)
        return start

    @property
    def largest(self) -> int:
        """Size of the largest free extent; 0 if nothing is free."""
        return self._by_size[-1][0] if self._by_size else 0

    def give(self, start: int, size: int) -> None:
        """Make ``size`` bytes at ``start`` free; they must not be free already."""
        end = start + size
        if (before := self._start_of.get(start)) is not None:
            self._remove(before, start)
            start = before
        if (after := self._end_of.get(end)) is not None:
            self._remove(end, after)
            end = after
        self._add(start, end)

    def free_before(self, end: int) -> int:
        """Return the number of free bytes that end exactly at ``end``."""
        return end - self._start_of.get(end, end)

    def _add(self, start: int, end: int) -> None:
        insort(self._by_size, (end - start, start))
        self._end_of[start] = end
        self._start_of[end] = start
        self.free_bytes += end - start

    def _remove(self, start: int, end: int) -> None:
        del self._by_size[bisect_left(self._by_size, (end - start, start))]
        del self._end_of[start]
        del self._start_of[end]
        self.free_bytes -= end - start
