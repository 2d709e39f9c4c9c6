"""Scratch files that nobody else can open and that do not outlive their process.

Where the system can make a file without a name (``O_TMPFILE``), nothing is ever left. Elsewhere a new file loses its
name at once. Where open files cannot, they keep it and a lock: the next start removes the files of killed processes,
whose locks are free.
"""

import errno
import os
import re
import secrets
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass

from tensorstash.stores.disk.syscalls import Syscalls

if sys.platform != "win32":
    import fcntl

_NAME = re.compile(r"tensorstash-[0-9a-f]{16}\.tmp")
_ATTEMPTS = 100
_NO_TMPFILE = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL}


@dataclass(frozen=True, slots=True)
class PrivateFile:
    """An open file of mode 0600.

    Args:
        fd: its descriptor, not inherited by programs that are started; the receiver closes it, by :meth:`close`.
        path: its name, empty if it has none.
    """

    fd: int
    path: str = ""

    def close(self, *, remove: bool = True) -> None:
        """Close the file, and remove its name if it has one.

        Args:
            remove: False in a forked child, where the name belongs to the parent.
        """
        os.close(self.fd)
        if self.path and remove:
            with suppress(FileNotFoundError):  # taken for stale by another process, or deleted by the system
                os.unlink(self.path)


def open_private_file(directory: str, calls: Syscalls) -> PrivateFile:
    """Open a new file in ``directory`` for reading and writing.

    Raises:
        OSError: the directory is missing, not a directory, not writable, or the process is out of descriptors.
    """
    remove_stale(directory)
    if calls.unnamed:
        try:
            return PrivateFile(os.open(directory, os.O_RDWR | os.O_TMPFILE | os.O_EXCL, 0o600))
        except OSError as error:
            if error.errno not in _NO_TMPFILE:
                raise
    for _ in range(_ATTEMPTS):
        if (found := _create(directory, calls)) is not None:
            return found
    raise OSError(errno.EBUSY, f"other processes removed {_ATTEMPTS} new files at once", directory)


def remove_stale(directory: str) -> None:
    """Remove files that killed processes of this user have left in ``directory``; never those of a live process.

    Raises:
        OSError: the directory is missing or cannot be listed.
    """
    with os.scandir(directory) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name):
                with suppress(OSError):  # its owner is alive, or another process is removing it: theirs to remove
                    _remove_if_stale(entry.path)


def _create(directory: str, calls: Syscalls) -> PrivateFile | None:
    """Return a new file, or None if another process took it for stale before it was locked."""
    path = os.path.join(directory, f"tensorstash-{secrets.token_hex(8)}.tmp")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    if sys.platform == "win32":
        flags |= os.O_BINARY | os.O_TEMPORARY | os.O_NOINHERIT
    fd = os.open(path, flags, 0o600)
    if not _lock(fd) or os.fstat(fd).st_nlink == 0:
        os.close(fd)
        return None
    if calls.unlink_open:
        try:
            os.unlink(path)
        except OSError:
            pass  # network and user-space file systems may keep a name for as long as the file is open
        else:
            return PrivateFile(fd)
    return PrivateFile(fd, path)


if sys.platform == "win32":

    def _lock(fd: int) -> bool:
        return True

    def _remove_if_stale(path: str) -> None:
        """Leave it: the system deletes a file with the process that has it."""

else:

    def _lock(fd: int) -> bool:
        """Mark the file as in use for as long as it is open; False if another process holds the mark."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            pass  # the file system has no locks: then nobody can take it for stale either
        return True

    def _remove_if_stale(path: str) -> None:
        # Others may write here too, and must not choose the removed files: no links, nobody else's files.
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            found = os.fstat(fd)
            if found.st_uid == os.geteuid() and stat.S_ISREG(found.st_mode):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
        finally:
            os.close(fd)
