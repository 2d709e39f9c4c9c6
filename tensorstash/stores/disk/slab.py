"""One scratch file that holds many records."""

import errno
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from tempfile import TemporaryFile

import numpy as np

from tensorstash.errors import CorruptDataError, StoreError, StoreFullError
from tensorstash.host.arrays import Array, whole_pages
from tensorstash.host.checksum import block_checksums
from tensorstash.host.free_space import FreeSpace
from tensorstash.host.pages import BLOCK, HUGE_PAGE, page_aligned, round_up
from tensorstash.stores.disk.syscalls import FULL, UNSUPPORTED, Syscalls

_GROWTH = 64 * 2**20
_SCRAP = 256 * 2**10
_STALLS = 8
_REFUSALS = {
    errno.ENOENT: "does not exist or takes no files",
    errno.ENOTDIR: "is not a directory",
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "may not be written to"),
}


class Slab:
    """A private file, grown in steps and reused, read and written past the page cache where the system lets it.

    Only one thread at a time may use :meth:`take` and :attr:`space`; :meth:`write` and :meth:`read` are thread-safe.
    The file is gone once it is closed, unless the parent of a forked child still has it open.
    """

    def __init__(self, directory: str, calls: Syscalls, *, direct: bool, limit_bytes: int | None) -> None:
        self.directory = directory
        self.size = 0
        self._calls = calls
        self._limit = None if limit_bytes is None else limit_bytes // BLOCK * BLOCK
        self.space = FreeSpace()
        """The extents that are not taken."""
        self._turn = nullcontext() if calls.positioned else threading.Lock()
        try:
            self.file = TemporaryFile(dir=directory, prefix="tensorstash-", buffering=0)  # noqa: SIM115
        except OSError as error:
            why = _REFUSALS.get(error.errno or 0)
            if why is None:
                raise _failed(f"opening a file in {directory!r}", error) from error
            raise StoreError(
                f"disk.directory: {directory!r} {why}; pass one that you may write to: DiskSpill('/path/on/a/disk')"
            ) from error
        try:
            self.address_unit = calls.enable_direct(self.file.fileno()) if direct else 0
        except OSError as error:
            self.file.close()
            raise _failed(f"trying direct I/O in {directory!r}", error) from error
        self.direct = self.address_unit > 0
        """Whether the page cache is bypassed."""

    def take(self, size: int) -> tuple[int, int] | None:
        """Return offset and size of at most ``size`` bytes, or None if nothing is free and the file is at its limit.

        The best fit comes first, then the largest scrap that is worth it, then growing, and small scraps last.
        """
        if self.space.largest < min(size, _SCRAP) and self.size != self._limit:
            try:
                self._grow(size - self.space.free_before(self.size))
            except StoreFullError:
                if not self.space.largest:
                    raise
        size = min(size, self.space.largest)
        offset = self.space.take(size) if size else None
        return None if offset is None else (offset, size)

    def write(self, parts: Sequence[Array], offset: int) -> None:
        """Write arrays one after the other; all but the first must be shorter than the device's unit of addresses."""
        if self.direct:  # whole blocks of the first go from where they are; the rest is copied
            first, *others = parts
            whole = first.size // BLOCK * BLOCK
            rest = np.concatenate([first[whole:], *others])
            last = page_aligned(round_up(rest.size))
            last[: rest.size] = rest
            parts = [part for part in (first[:whole], last) if part.size]
        self._write_all(parts, offset)

    def write_copy(self, data: Array, offset: int) -> list[int]:
        """Write ``data`` by way of a buffer in one run of memory; return its checksums.

        Pages far from one another cost the device more than copying costs the processor.
        """
        bounce = _bounce(round_up(data.size))
        digests = block_checksums(data, copy=bounce[: data.size])
        self._write_all([bounce], offset)
        return digests

    def read(self, out: Array, nbytes: int, offset: int, *, by_copy: bool) -> list[int]:
        """Fill whole blocks, directly or by way of a copy, and return the checksums of their first ``nbytes``."""
        target = _bounce(out.size) if by_copy else out
        self._read_all(target, offset)
        return block_checksums(target[:nbytes], copy=out[:nbytes] if by_copy else None)

    def _write_all(self, parts: Sequence[Array], offset: int) -> None:
        def write(done: int) -> int:
            return self._calls.write(self.file.fileno(), _after(parts, done), offset + done)

        nbytes = sum(part.size for part in parts)
        if (done := self._transfer("writing", nbytes, write)) < nbytes:
            raise StoreError(f"the device of {self.directory!r} took {done} of {nbytes} bytes, and then no more")

    def _read_all(self, out: Array, offset: int) -> None:
        def read(done: int) -> int:
            return self._calls.read(self.file.fileno(), out[done:], offset + done)

        if (done := self._transfer("reading", out.size, read)) < out.size:
            raise CorruptDataError(f"the slab in {self.directory!r} ends at byte {done} of a record of {out.size}")

    def _transfer(self, verb: str, nbytes: int, call: Callable[[int], int]) -> int:
        # Until all is done or nothing moves any more.
        done = stalls = 0
        while done < nbytes and stalls < _STALLS:
            try:
                with self._turn:
                    moved = call(done)
            except OSError as error:
                raise _failed(f"{verb} {nbytes} bytes in {self.directory!r}", error) from error
            if self.direct:
                moved -= moved % BLOCK  # the rest has to start at a block again
            stalls = 0 if moved else stalls + 1
            done += moved
        return done

    def _grow(self, need: int) -> None:
        """Add ``need`` bytes of blocks or more, or as many as the limit allows."""
        room = sys.maxsize if self._limit is None else self._limit - self.size
        need = min(need, room)
        step = max(need, min(self.size // 4 // BLOCK * BLOCK, room, _GROWTH))
        refusal = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        for size in dict.fromkeys((step, need)):
            try:
                # Tried only where it fits: a refused reservation holds every free block until it is cut off.
                if self._calls.available(self.file.fileno(), self.directory) < size:
                    continue
                with self._turn:  # it may write, too
                    self._reserve(size)
            except OSError as error:
                self._cut()
                # Without its traceback, which refers to this frame and so to the error itself.
                refusal = error.with_traceback(None)
                continue
            self.space.give(self.size, size)
            self.size += size
            return
        raise _failed(f"growing the slab in {self.directory!r} by {need} bytes", refusal) from refusal

    def _reserve(self, size: int) -> None:
        try:
            self._calls.reserve(self.file.fileno(), self.size, size)
        except OSError as error:
            if error.errno not in UNSUPPORTED or not self._calls.preallocate:
                raise
            self._cut()
            self._calls = replace(self._calls, preallocate=False)
            self._calls.reserve(self.file.fileno(), self.size, size)

    def _cut(self) -> None:
        try:
            self._calls.truncate(self.file.fileno(), self.size)
        except OSError as error:
            raise _failed(f"cutting the slab in {self.directory!r} to {self.size} bytes", error) from error


def _after(parts: Sequence[Array], done: int) -> Sequence[Array]:
    first = parts[0]
    return [first[done:], *parts[1:]] if done < first.size else _after(parts[1:], done - first.size)


def _bounce(nbytes: int) -> Array:
    """Return bytes in one run of memory."""
    return whole_pages(max(nbytes, HUGE_PAGE))[:nbytes]


def _failed(doing: str, error: OSError) -> StoreError:
    code = errno.errorcode.get(error.errno or 0, "unknown")
    if error.errno in FULL:
        return StoreFullError(f"{doing}: no room ({code}: {error.strerror}); free some, or name another directory")
    return StoreError(f"{doing}: {code}: {error.strerror}")
