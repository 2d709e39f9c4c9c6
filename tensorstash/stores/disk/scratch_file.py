"""Scratch files that nobody else can open and that do not outlive their process.

Where the system can make a file without a name (``O_TMPFILE``), nothing is ever left. Elsewhere the file is made in a
fresh directory of mode 0700 and both names are removed at once. Where open files cannot lose their name, they keep it
and a lock: the next start removes the files of killed processes, whose locks are free.
"""

import errno
import os
import sys
import tempfile
from dataclasses import dataclass

from tensorstash.stores.disk.syscalls import Syscalls

if sys.platform != "win32":
    import fcntl

_PREFIX = "tensorstash-"
_SUFFIX = ".tmp"
_NAME = "slab"
_ATTEMPTS = 100
_NO_TMPFILE = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL}


@dataclass(frozen=True, slots=True)
class PrivateFile:
    """An open file of mode 0600.

    Args:
        fd: its descriptor, not inherited by programs that are started; the receiver closes it, by :meth:`close`.
        directory: the private directory that holds its name, empty if it has none.
    """

    fd: int
    directory: str = ""

    def close(self, *, remove: bool = True) -> None:
        """Close the file, and remove its name and directory if it has one.

        Args:
            remove: False in a forked child, where the name belongs to the parent.
        """
        os.close(self.fd)
        if self.directory and remove:
            _remove_names(self.directory)


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
            if entry.name.startswith(_PREFIX) and entry.name.endswith(_SUFFIX):
                try:
                    _remove_if_stale(entry.path)
                except OSError:
                    continue  # its owner is alive, or another process is removing it: theirs to remove


def _create(directory: str, calls: Syscalls) -> PrivateFile | None:
    """Return a new file, or None if another process took the names for stale before the file was locked."""
    private = tempfile.mkdtemp(prefix=_PREFIX, suffix=_SUFFIX, dir=directory)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    if sys.platform == "win32":
        flags |= os.O_BINARY | os.O_TEMPORARY | os.O_NOINHERIT
    try:
        fd = os.open(os.path.join(private, _NAME), flags, 0o600)
    except FileNotFoundError:
        return None
    except OSError:
        _remove_names(private)
        raise
    if not _lock(fd) or os.fstat(fd).st_nlink == 0:
        os.close(fd)
        return None
    if calls.unlink_open:
        try:
            _remove_names(private)
        except OSError:
            pass  # network and user-space file systems may keep a name for as long as the file is open
        else:
            return PrivateFile(fd)
    return PrivateFile(fd, private)


def _remove_names(private: str) -> None:
    for remove, path in ((os.unlink, os.path.join(private, _NAME)), (os.rmdir, private)):
        try:
            remove(path)
        except FileNotFoundError:
            continue  # taken for stale by another process, or deleted by the system when it was closed


if sys.platform == "win32":

    def _lock(fd: int) -> bool:
        return True

    def _remove_if_stale(private: str) -> None:
        if not os.path.islink(private):
            os.rmdir(private)  # fails while its file is open; the system deletes the file with the process

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

    def _remove_if_stale(private: str) -> None:
        # Others may write here too, and must not choose the removed files: no links, nobody else's directories.
        inside = os.open(private, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(inside).st_uid != os.geteuid():
                return
            fd = os.open(_NAME, os.O_RDWR | os.O_NOFOLLOW, dir_fd=inside)
        except FileNotFoundError:
            os.rmdir(private)
            return
        else:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(_NAME, dir_fd=inside)
            finally:
                os.close(fd)
            os.rmdir(private)
        finally:
            os.close(inside)
