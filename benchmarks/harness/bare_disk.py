"""A bare direct-I/O loop, to hold the disk store against: by itself, and beside the training steps of a model."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

from tensorstash.host.arrays import Array
from tensorstash.host.checksum import checksum
from tensorstash.host.pages import mapped_pages

BARE_DISK = "bare_disk"
CALL = 4 << 20


class Bare:
    """Records in one unlinked file, by as few calls as can be."""

    def __init__(self, directory: str, source: Array, records: int) -> None:
        self.fd = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT, 0o600)
        self.source = source
        os.posix_fallocate(self.fd, 0, source.nbytes * records)

    def write(self, record: int) -> None:
        for piece, at in self._pieces(record):
            checksum(piece)
            os.pwrite(self.fd, piece, at)

    def read(self, record: int) -> None:
        for piece, at in self._pieces(record):
            os.preadv(self.fd, [piece], at)
            checksum(piece)

    def _pieces(self, record: int) -> Iterator[tuple[Array, int]]:
        for start in range(0, self.source.nbytes, CALL):
            yield self.source[start : start + CALL], record * self.source.nbytes + start


class BareDisk:
    """Around a forward in PyTorch: one thread writes as many bytes as are saved, and reads them in backward.

    Tensors stay as they are. No policy that spills takes less of a step: it moves these bytes at the model's pace.

    Args:
        share: of the bytes, as text.
        directory: of the file.
    """

    def __init__(self, share: str, directory: str) -> None:
        pages = mapped_pages(CALL)
        pages[:] = 1  # faulted in
        self._share, self._records = float(share), 256
        self._disk, self._thread = Bare(directory, pages, self._records), ThreadPoolExecutor(1)
        self._moved = {"write": 0.0, "read": 0.0}
        self._saved: set[int] = set()
        self._hooks = import_module("torch.autograd.graph").saved_tensors_hooks(self._pack, self._unpack)

    def __enter__(self) -> None:
        self._saved.clear()
        self._hooks.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)

    def _pack(self, tensor: Any) -> Any:
        memory = tensor.untyped_storage()
        if not tensor.is_leaf and memory.data_ptr() not in self._saved:
            self._saved.add(memory.data_ptr())
            self._move("write", memory.nbytes())
        return tensor if tensor.is_leaf else tensor.detach()  # itself, it would hold the graph that holds it

    def _unpack(self, tensor: Any) -> Any:
        memory = tensor.untyped_storage()
        if memory.data_ptr() in self._saved:
            self._saved.remove(memory.data_ptr())
            self._move("read", memory.nbytes())
        return tensor

    def _move(self, verb: str, nbytes: int) -> None:
        before = self._moved[verb]
        after = self._moved[verb] = before + nbytes * self._share
        for call in range(int(before // CALL), int(after // CALL)):
            self._thread.submit(getattr(self._disk, verb), call % self._records)
