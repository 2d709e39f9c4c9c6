"""The operating system's calls on a slab file, with a fallback where one is missing."""

import errno
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tensorstash.host.arrays import Array
from tensorstash.host.pages import BLOCK, page_aligned
from tensorstash.spec import ALIGNMENT

if sys.platform != "win32":
    import fcntl

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG} if sys.platform != "win32" else {errno.ENOSPC, errno.EFBIG})
"""Error numbers that mean "no room": the device, the quota, or the largest file allowed."""
_ADDRESS_UNITS = (ALIGNMENT, 512, BLOCK)
UNSUPPORTED = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})
"""Error numbers that mean "not on this file system"."""

_STALLS = 8
_ZERO_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Syscalls:
    """The abilities of the operating system. Each can be switched off, which takes a fallback of the same meaning.

    The methods may transfer less than asked, as the calls themselves do. Here alone storage can fail.
    """

    direct: bool = hasattr(os, "O_DIRECT")  # the page cache can be bypassed
    preallocate: bool = hasattr(os, "posix_fallocate")  # blocks can be reserved without writing them
    positioned: bool = hasattr(os, "pwritev") and hasattr(os, "preadv")  # a call can name its offset

    def write(self, fd: int, parts: Sequence[Array], offset: int) -> int:
        """Write a prefix of ``parts`` and return its length; without ``positioned`` not thread-safe, the first only."""
        if self.positioned:
            return os.pwritev(fd, [part.data for part in parts], offset)
        os.lseek(fd, offset, os.SEEK_SET)
        return os.write(fd, parts[0].data)

    def read(self, fd: int, out: Array, offset: int) -> int:
        """Fill a prefix of ``out`` from ``offset`` and return its length. Without ``positioned``: not thread-safe."""
        if self.positioned:
            return os.preadv(fd, [out.data], offset)
        os.lseek(fd, offset, os.SEEK_SET)
        with open(fd, "rb", buffering=0, closefd=False) as file:
            return file.readinto(out.data)

    def enable_direct(self, fd: int) -> int:
        """Make an empty file bypass the page cache; return the unit of addresses it takes, in bytes, or 0."""
        if not self.direct or sys.platform == "win32":
            return 0
        buffered = fcntl.fcntl(fd, fcntl.F_GETFL)
        for unit in _ADDRESS_UNITS:
            probe = page_aligned(2 * BLOCK)[unit % BLOCK :][:BLOCK]
            try:
                fcntl.fcntl(fd, fcntl.F_SETFL, buffered | os.O_DIRECT)
                # File systems refuse different calls at different times: so one block is written and taken back.
                os.pwrite(fd, probe.data, 0)
            except OSError as error:
                if error.errno in FULL:
                    return BLOCK
                if error.errno not in UNSUPPORTED:
                    raise
            else:
                return unit
            finally:
                os.ftruncate(fd, 0)
        fcntl.fcntl(fd, fcntl.F_SETFL, buffered)
        return 0

    def reserve(self, fd: int, start: int, length: int) -> None:
        """Give the file blocks for ``length`` bytes from its end, ``start``, on, or zeros without ``preallocate``.

        Raises:
            OSError: there is no room; or, with a number in :data:`UNSUPPORTED`, the file system reserves no blocks
                (ext2 and ext3, NFS before 4.2, some in user space; the C library then writes a byte to each block,
                which direct I/O refuses).
        """
        if self.preallocate:
            os.posix_fallocate(fd, start, length)
            return
        zeros = page_aligned(min(length, _ZERO_BYTES))
        zeros.fill(0)
        end, stalls = start + length, 0
        while start < end:
            moved = self.write(fd, [zeros[: end - start]], start)
            start += moved - moved % BLOCK  # the rest has to start at a block again
            stalls = 0 if moved >= BLOCK else stalls + 1
            if stalls == _STALLS:
                raise OSError(errno.EIO, f"the device took {moved} of {min(end - start, zeros.size)} bytes of zeros")

    def truncate(self, fd: int, length: int) -> None:
        """Cut the file to ``length`` bytes and give its other blocks back."""
        os.ftruncate(fd, length)

    def available(self, fd: int, directory: str) -> int:
        """Return the number of bytes this user may still allocate on the device of ``fd``."""
        return shutil.disk_usage(directory if sys.platform == "win32" else fd).free
