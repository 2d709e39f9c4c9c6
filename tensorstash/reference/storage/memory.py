"""Memory spaces with exact accounting, and the storages that live in them.

``cpu`` is host memory. ``sim:0`` and ``sim:1`` are simulated accelerators: host code reaches their memory only by an
explicit copy. Only storages are accounted; the scratch memory of a kernel is not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from weakref import WeakSet

import numpy as np

from tensorstash.reference.storage.dtypes import Array, DType
from tensorstash.reference.storage.layout import Layout, repeats
from tensorstash.reference.storage.streams import current_stream, driver

_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, eq=False)
class MemorySpace:
    """The memory of one device."""

    name: str
    storages: WeakSet[Storage] = field(default_factory=WeakSet, repr=False)

    @property
    def is_host(self) -> bool:
        """Whether NumPy may address this memory."""
        return self.name == "cpu"

    @property
    def allocated_bytes(self) -> int:
        """Bytes that are allocated now."""
        return sum(storage.nbytes for storage in self.storages)


_SPACES = MappingProxyType({name: MemorySpace(name) for name in ("cpu", "sim:0", "sim:1")})


def memory(device: str) -> MemorySpace:
    """Give the memory space of a device; refuse other names with a `ValueError`."""
    if device not in _SPACES:
        raise ValueError(f"no device {device!r}; expected one of {', '.join(_SPACES)}")
    return _SPACES[device]


class Storage:
    """A block of bytes in one memory space, with the version counter that all tensors over it share.

    Hashable by identity: a weak reference to it never equals one to a later storage at the same address. The buffer is
    adopted, not copied. The counter is the number of in-place operations, in a list of one, to share.
    """

    __slots__ = ("__weakref__", "buffer", "counter", "nbytes", "space")

    def __init__(self, buffer: Array, space: MemorySpace, counter: list[int] | None = None) -> None:
        if buffer.dtype != np.uint8 or buffer.ndim != 1 or not (buffer.flags.c_contiguous and buffer.flags.writeable):
            raise ValueError(
                f"a storage needs a flat, writable uint8 buffer, got {buffer.dtype} of shape {buffer.shape}"
            )
        self.space, self.buffer, self.nbytes = space, buffer, buffer.nbytes
        space.storages.add(self)
        self.counter = [0] if counter is None else counter

    @classmethod
    def allocate(cls, nbytes: int, space: MemorySpace, phase: int = 0) -> Storage:
        """Give uninitialised bytes whose address modulo 64 is `phase`."""
        size, stream = nbytes + _ALIGNMENT_BYTES, None if space.is_host else current_stream(space.name)
        block = np.empty(size, np.uint8) if stream is None else driver().take(size, stream)
        start = (phase - block.ctypes.data) % _ALIGNMENT_BYTES
        storage = cls(block[start : start + nbytes], space)
        if stream is not None:
            driver().lend(block, storage, stream)
        return storage

    def write(self, layout: Layout, dtype: DType, values: Array) -> None:
        """Overwrite the elements at `layout` after all work of the current stream.

        `values` of the host are read now, those of an accelerator when the stream comes to it.
        """
        window = self.window(layout, dtype)
        if self.space.is_host:
            window[...] = values
        else:
            current_stream(self.space.name).submit(partial(np.copyto, window, values))

    def window(self, layout: Layout, dtype: DType) -> Array:
        """Give the elements at `layout` as an array over this memory; it does not keep the storage accounted."""
        if layout.numel == 0:
            return np.empty(layout.shape, dtype.carrier)
        window: Array = np.ndarray(
            layout.shape, dtype.carrier, buffer=self.buffer, offset=layout.offset, strides=layout.byte_strides
        )
        return window


def adopt_array(array: Array, space: MemorySpace) -> tuple[Storage, Layout]:
    """Give a storage with a dense copy of a kernel's result, and its layout.

    The order in memory is that of the result, unless that repeats elements.
    """
    dense = np.array(array, order="C" if repeats(array.shape, array.strides) else "K")
    layout = Layout(dense.shape, tuple(step // dense.itemsize for step in dense.strides), 0, dense.itemsize)
    storage = Storage.allocate(dense.nbytes, space)
    storage.buffer[...] = dense.ravel("K").view(np.uint8)
    return storage, layout
