"""The record of one payload on disk: its pieces, and its users."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import ref

from tensorstash.errors import CorruptDataError
from tensorstash.host.checksum import CHECKSUM_BLOCK
from tensorstash.stores.disk.slab import Extent, Slab
from tensorstash.stores.disk.turn import Turn


@dataclass(slots=True, eq=False)
class Piece:
    """The bytes ``start:stop`` of a record as it is turned, in one extent of its slab."""

    extent: Extent
    start: int
    stop: int
    digests: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Record:
    """A slot; equal only to itself. Its space is free when it is deleted or dropped, and nobody uses it."""

    nbytes: int
    slab: Slab
    pieces: list[Piece]
    turn: Turn
    users: int = 1
    is_live: bool = False
    space: "Space | None" = None


class Space(ref[Record]):
    """The space of a record, which the store takes back when the record has gone. Equal only to itself."""

    __slots__ = ("pieces",)
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    pieces: list[Piece]

    @property
    def is_free(self) -> bool:
        """Whether nobody uses the record any more, or ever will."""
        record = self()
        return record is None or not record.users


def corrupt(record: Record, piece: Piece, found: Sequence[int]) -> CorruptDataError:
    """Return the error for a piece whose sums are not those of the put bytes."""
    number, got, expected = next(
        (number, got, expected)
        for number, (got, expected) in enumerate(zip(found, piece.digests, strict=True))
        if got != expected
    )
    start = piece.start + number * CHECKSUM_BLOCK
    return CorruptDataError(
        f"bytes {start} to {min(start + CHECKSUM_BLOCK, piece.stop)} on disk of a record of {record.nbytes} bytes in "
        f"{record.slab.directory!r}: got checksum {got:#018x}, expected {expected:#018x}"
    )
