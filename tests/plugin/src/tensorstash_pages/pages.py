"""Payloads in pages of their own, which go back to the system with the payload."""

import mmap
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tensorstash.errors import SlotGoneError
from tensorstash.host.arrays import Array
from tensorstash.protocols import Slot, Tier


@dataclass(frozen=True, kw_only=True)
class Pages:
    """Host memory past the allocator: each payload is an anonymous mapping."""

    name: ClassVar[str] = "pages"
    tier: ClassVar[Tier] = "memory"

    def open(self) -> "PagesStore":
        """Open an empty store; the caller closes it."""
        return PagesStore()


class PagesStore:
    """The live store of :class:`Pages`. Thread-safe."""

    retains: ClassVar[bool] = False

    def __init__(self) -> None:
        self._arrays: dict[Slot, Array] = {}
        self._closed = False

    def put(self, data: Array, /) -> Slot:
        if self._closed:
            raise SlotGoneError("the pages are closed")
        slot = object()
        pages = np.frombuffer(mmap.mmap(-1, max(data.size, 1)), np.uint8)[: data.size]
        pages[:] = data
        pages.flags.writeable = False
        self._arrays[slot] = pages
        return slot

    def get(self, slot: Slot, /) -> Array:
        try:
            return self._arrays[slot]
        except KeyError:
            raise SlotGoneError("the slot was deleted, or the pages are closed") from None

    def delete(self, slot: Slot, /) -> None:
        self._arrays.pop(slot, None)

    def close(self) -> None:
        self._closed = True
        self._arrays.clear()
