"""What a store on disk knows of a payload: where it lies, and who has it."""

import os
from dataclasses import dataclass, field
from weakref import ref

from tensorstash.stores.slab import Extent, Slab


@dataclass(slots=True, eq=False)
class Piece:
    """The bytes ``start:stop`` of a record, in one extent of one slab."""

    slab: Slab
    extent: Extent
    start: int
    stop: int
    digests: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Record:
    """A slot; equal only to itself. Its space is free when it is deleted or dropped, and nobody uses it."""

    nbytes: int
    pieces: list[Piece]
    users: int = 1
    is_live: bool = False
    pid: int = field(default_factory=os.getpid)
    space: "Space | None" = None


class Space(ref[Record]):
    """What a store knows of a record: enough to take its space back when it has gone. Equal only to itself."""

    __slots__ = ("pieces",)
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    pieces: list[Piece]

    @property
    def is_free(self) -> bool:
        """Whether nobody uses the record any more, or ever will."""
        record = self()
        return record is None or not record.users
