"""The record of one payload on disk: its pieces, its users, and how it is turned.

Direct I/O takes memory from certain addresses on only, and a tensor starts where its allocator wants. So a record is
written from its first such address on, and the few bytes before that come last. It is read back to an address that is
as far from such a one: only those few bytes are ever copied.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tensorstash.errors import CorruptDataError
from tensorstash.host.arrays import Array, address
from tensorstash.host.checksum import CHECKSUM_BLOCK, joint_checksum
from tensorstash.host.pages import HUGE_PAGE, round_up
from tensorstash.host.pool import Loan


class Turn(NamedTuple):
    """How many of the first bytes of a record come last, and where the others start in the pages it is read into."""

    shift: int
    room: int

    def parts(self, data: Array, start: int, stop: int) -> list[Array]:
        """Return the bytes ``start:stop`` of a record as it is turned, in one view of it or two."""
        start, stop = start + self.shift, stop + self.shift
        end = stop - data.size
        return [data[start:stop]] if end <= 0 else [data[start:], data[max(start - data.size, 0) : end]]

    def checksums(self, data: Array, start: int, stop: int) -> list[int]:
        """Return the checksum of each block of :meth:`parts`."""
        blocks = range(start, stop, CHECKSUM_BLOCK)
        return [joint_checksum(*self.parts(data, at, min(at + CHECKSUM_BLOCK, stop))) for at in blocks]

    def back(self, pages: Array, nbytes: int) -> Array:
        """Return the record of so many bytes; ``pages`` hold the bytes of the disk from ``room`` on."""
        record = pages[self.room - self.shift :][:nbytes]
        if self.shift:
            record[: self.shift] = pages[self.room + nbytes - self.shift :][: self.shift]
        return record


def is_long(data: Array) -> bool:
    """Whether a record is written from where it lies: the pages of shorter ones are far from one another."""
    return data.size >= HUGE_PAGE


def turn_of(data: Array, unit: int) -> Turn:
    """Return how to turn a record for a device that takes addresses of a unit, in bytes; 0 if it takes any."""
    shift = -address(data) % unit if unit and is_long(data) else 0
    return Turn(shift, unit if shift else 0)


@dataclass(slots=True, eq=False)
class Piece:
    """The bytes ``start:stop`` of a record as it is turned, at one place of the file."""

    offset: int
    start: int
    stop: int
    digests: list[int] = field(default_factory=list)

    @property
    def room(self) -> int:
        """The bytes that it takes of the file."""
        return round_up(self.stop - self.start)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Record:
    """A slot; equal only to itself. Its space is free when it is deleted or dropped, and nobody uses it."""

    nbytes: int
    pieces: list[Piece]
    turn: Turn
    users: int = 1
    is_live: bool = False
    space: Loan | None = None


def corrupt(record: Record, piece: Piece, found: Sequence[int], directory: str) -> CorruptDataError:
    """Return the error for a piece whose sums are not those of the put bytes."""
    number = next(number for number, (got, put) in enumerate(zip(found, piece.digests, strict=True)) if got != put)
    start = piece.start + number * CHECKSUM_BLOCK
    return CorruptDataError(
        f"bytes {start} to {min(start + CHECKSUM_BLOCK, piece.stop)} on disk of a record of {record.nbytes} bytes in "
        f"{directory!r}: got checksum {found[number]:#018x}, expected {piece.digests[number]:#018x}"
    )
