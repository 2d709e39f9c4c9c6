"""A store on disk: one slab file, direct I/O, nothing left behind."""

import os
import tempfile
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from tensorstash.errors import ConfigError, SlotGoneError, StoreFullError
from tensorstash.host.arrays import Array, address, copied, whole_pages
from tensorstash.host.forks import renew_after_fork
from tensorstash.host.pages import HUGE_PAGE, round_up
from tensorstash.host.pool import Loan
from tensorstash.protocols import Slot, Tier
from tensorstash.sizes import format_bytes, parse_budget, parse_bytes
from tensorstash.spec import ALIGNMENT
from tensorstash.stores.disk.records import Piece, Record, corrupt, is_long, turn_of
from tensorstash.stores.disk.slab import Slab
from tensorstash.stores.disk.syscalls import Syscalls

_SCATTERED = 64 * 2**10
"""Bytes from which on, up to a huge page, a buffer is of so many pages that the device would feel it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Disk:
    """Payloads go to scratch files that no other user can read and that vanish with the process.

    Args:
        directory: an existing directory; None for ``$TMPDIR``, else ``/var/tmp``, else the system's place
            for temporary files. Where ``/tmp`` is kept in memory, a store there saves none.
        budget: most bytes of disk to take, an int or text such as ``"40GiB"``; None for no limit but the device. A
            record takes whole blocks of 4096 bytes. Deleted bytes stay readable in the file, for whoever may look
            into the open files of this process, until another record takes its place or the store closes.
        direct: bypass the page cache where the file system can, which costs least memory and processor time; False
            to go through it.

    Raises:
        ConfigError: a field of the wrong type or value. Whether the directory exists is found by :meth:`open`.

    >>> Disk(directory="/nvme/scratch", budget="40GiB")
    Disk(directory='/nvme/scratch', budget=42949672960, direct=True)
    """

    directory: str | None = None
    budget: int | str | None = None
    direct: bool = True
    name: ClassVar[str] = "disk"
    tier: ClassVar[Tier] = "disk"

    def __post_init__(self) -> None:
        if self.directory is not None:
            path = os.fspath(self.directory) if isinstance(self.directory, str | os.PathLike) else None
            if not isinstance(path, str) or not path or "\0" in path:
                raise ConfigError(f"disk.directory: got {self.directory!r}, expected the path of a directory")
            object.__setattr__(self, "directory", path)
        if self.budget is not None:
            object.__setattr__(self, "budget", parse_budget(self.budget, path="disk.budget"))
        if not isinstance(self.direct, bool):
            raise ConfigError(f"disk.direct: got {self.direct!r}, expected true or false")

    @property
    def directories(self) -> tuple[str, ...]:
        """The directory, as it is on this machine."""
        if self.directory is not None:
            return (os.path.expanduser(self.directory),)
        if not os.environ.get("TMPDIR") and os.path.isdir("/var/tmp"):
            return ("/var/tmp",)
        return (tempfile.gettempdir(),)

    def open(self) -> "DiskStore":
        """Open an empty store, which the caller closes; raise a StoreError where that cannot be."""
        return DiskStore(self)


class DiskStore:
    """The live store of :class:`Disk`. Thread-safe.

    A record that nobody refers to is deleted, also where an interrupt has kept :meth:`delete` from being called. Only
    threads that no interrupt reaches put and get records, which the engine sees to. In a forked child it is closed, and
    the parent goes on with the file.
    """

    retains: ClassVar[bool] = False
    verifies: ClassVar[bool] = True

    def __init__(self, config: Disk, calls: Syscalls | None = None) -> None:
        self._config = config
        self._closed = ""  # the reason
        self._lock = threading.Lock()
        self._users = 0
        self._spaces: set[Loan] = set()
        self._dropped: deque[Loan] = deque()
        self._drops = self._dropped.append  # one for all: the collector looks at each
        limit = None if config.budget is None else parse_bytes(config.budget, path="disk.budget")
        (directory,) = config.directories
        self.slab = Slab(directory, calls or Syscalls(), direct=config.direct, limit_bytes=limit)
        weakref.finalize(self, self.slab.file.close)
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Leave the file to the parent; its threads, which are not here, may have held the lock."""
        self._lock = threading.Lock()
        self._closed = f"the parent's of this forked process: its records are in process {os.getppid()}"
        self.slab.file.close()

    @property
    def used_bytes(self) -> int:
        """Bytes of the budget that slots take, in whole blocks."""
        with self._lock:
            if self._closed:
                return 0
            self._settle()
            return self.slab.size - self.slab.space.free_bytes

    @property
    def file_bytes(self) -> int:
        """Bytes of disk that the store takes, free space inside its file included; never above the budget."""
        return 0 if self._closed else self.slab.size

    @property
    def direct(self) -> bool:
        """Whether the page cache is bypassed."""
        return self.slab.direct

    def put(self, data: Array, /) -> Slot:
        """Write ``data`` to disk and return its slot; the array is not kept."""
        is_in_place = is_long(data)
        if is_in_place and address(data) % ALIGNMENT:
            data = copied(data)
        record = self._begin_put(data)
        try:
            for piece in record.pieces:
                if is_in_place or not self.slab.direct:
                    piece.digests = record.turn.checksums(data, piece.start, piece.stop)
                    self.slab.write(record.turn.parts(data, piece.start, piece.stop), piece.offset)
                else:
                    piece.digests = self.slab.write_copy(data[piece.start : piece.stop], piece.offset)
            record.is_live = True
            return record
        except BaseException:
            self._drop(record)
            raise
        finally:
            self._end(record)

    def get(self, slot: Slot, /) -> Array:
        """Return a private, writable copy of the bytes that were put, at a multiple of 64."""
        record = self._begin_get(slot)
        try:
            pages = whole_pages(record.turn.room + round_up(record.nbytes))
            out = pages[record.turn.room :]
            by_copy = self.slab.direct and _SCATTERED <= out.size < HUGE_PAGE
            for piece in record.pieces:
                part = out[piece.start :][: piece.room]
                found = self.slab.read(part, piece.stop - piece.start, piece.offset, by_copy=by_copy)
                if found != piece.digests:
                    raise corrupt(record, piece, found, self.slab.directory)
            return record.turn.back(pages, record.nbytes)
        finally:
            self._end(record)

    def delete(self, slot: Slot, /) -> None:
        """Free the slot; the next :meth:`put` takes the space back, once nobody reads it any more.

        It takes no lock: a finalizer may call it inside any other method on the same thread.
        """
        if isinstance(slot, Record) and slot.space in self._spaces:
            self._drop(slot)

    def close(self) -> None:
        """Close the file, which is gone with that; idempotent. Calls that are running end first."""
        self._closed = self._closed or "closed"
        with self._lock:
            if not self._users:
                self.slab.file.close()

    def _begin_put(self, data: Array) -> Record:
        """Return a record with space; it stays in use, and the file open, until :meth:`_end`."""
        with self._lock:
            self._refuse_closed()
            self._settle()
            record = Record(data.size, self._allocate(data.size), turn_of(data, self.slab.address_unit))
            record.space = space = Loan(record, self._drops)
            space.lent = record.pieces
            self._spaces.add(space)
            self._users += 1
        return record

    def _begin_get(self, slot: Slot) -> Record:
        """Return a record that is held; it stays in use, and the file open, until :meth:`_end`."""
        with self._lock:
            self._refuse_closed()
            if not isinstance(slot, Record) or not slot.is_live or slot.space not in self._spaces:
                raise SlotGoneError(f"{self._config!r} holds no such slot: it was deleted")
            slot.users += 1
            self._users += 1
        return slot

    def _end(self, record: Record) -> None:
        with self._lock:
            record.users -= 1
            self._users -= 1
            if self._closed and not self._users:
                self.slab.file.close()

    def _drop(self, record: Record) -> None:
        record.is_live = False
        assert record.space is not None, "a record that was never given a place"
        self._dropped.append(record.space)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise SlotGoneError(f"{self._config!r} is {self._closed}")

    def _settle(self) -> None:
        """Take back the space of dropped records, each once, but of those that are in use."""
        for _ in range(len(self._dropped)):
            space = self._dropped.popleft()
            record = space()
            if record is not None and record.users:
                self._dropped.append(space)
            elif space in self._spaces:
                self._spaces.discard(space)
                self._free(space.lent)

    def _free(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            self.slab.space.give(piece.offset, piece.room)

    def _allocate(self, nbytes: int) -> list[Piece]:
        """Return pieces for a record: one, or more where the free space lies in parts."""
        pieces: list[Piece] = []
        start = 0
        try:
            while start < nbytes:
                extent = self.slab.take(round_up(nbytes - start))
                if extent is None:
                    raise StoreFullError("raise the budget")
                offset, size = extent
                pieces.append(Piece(offset, start, min(start + size, nbytes)))
                start += size
        except BaseException as error:
            self._free(pieces)
            if isinstance(error, StoreFullError):
                raise StoreFullError(
                    f"{self._config!r}: a record of {nbytes} bytes does not fit, {format_bytes(self.file_bytes)} are "
                    f"in use; {error}"
                ) from error
            raise
        return pieces
