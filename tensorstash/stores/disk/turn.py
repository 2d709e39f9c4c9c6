"""Records that a device reads from where they are, wherever that is.

Direct I/O takes memory from certain addresses on only, and a tensor starts where its allocator wants. So a record is
written from its first such address on, and the few bytes before that come last. It is read back to an address that is
as far from such a one: only those few bytes are ever copied. Records shorter than a huge page lie in pages that are far
from one another, and are copied as a whole.
"""

from typing import NamedTuple

from tensorstash.host.arrays import Array, address
from tensorstash.host.pages import HUGE_PAGE


def is_long(data: Array) -> bool:
    """Return whether a record goes to disk from where it is."""
    return data.size >= HUGE_PAGE


class Turn(NamedTuple):
    """How many of the first bytes of a record come last, and where the others start in the pages it is read into."""

    shift: int
    room: int

    def parts(self, data: Array, start: int, stop: int) -> list[Array]:
        """Return the bytes ``start:stop`` of a record as it is turned, in one view of it or two."""
        start, stop = start + self.shift, stop + self.shift
        end = stop - data.size
        return [data[start:stop]] if end <= 0 else [data[start:], data[max(start - data.size, 0) : end]]

    def back(self, pages: Array, nbytes: int) -> Array:
        """Return the record of so many bytes; ``pages`` hold the bytes of the disk from ``room`` on."""
        record = pages[self.room - self.shift :][:nbytes]
        if self.shift:
            record[: self.shift] = pages[self.room + nbytes - self.shift :][: self.shift]
        return record


def turn_of(data: Array, unit: int) -> Turn:
    """Return how to turn a record for a device that takes addresses of a unit, in bytes; 0 if it takes any."""
    shift = -address(data) % unit if unit and is_long(data) else 0
    return Turn(shift, unit if shift else 0)
