"""Payloads in pages of their own, which go back to the system with the payload."""

import mmap
import threading
from collections import deque
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tensorstash.errors import SlotGoneError, StoreFullError
from tensorstash.host.arrays import Array
from tensorstash.protocols import Slot, Tier
from tensorstash.sizes import parse_bytes


@dataclass(frozen=True, kw_only=True)
class Pages:
    """Host memory past the allocator: each payload is an anonymous mapping.

    Args:
        budget: most bytes of pages at one time, an int or text such as ``"4GiB"``; None for no limit.

    Raises:
        ConfigError: the budget is not a number of bytes.
    """

    name: ClassVar[str] = "pages"
    tier: ClassVar[Tier] = "memory"
    budget: int | str | None = None

    def __post_init__(self) -> None:
        if self.budget is not None:
            object.__setattr__(self, "budget", parse_bytes(self.budget, path="pages.budget"))

    def open(self) -> "PagesStore":
        """Open an empty store; the caller closes it."""
        return PagesStore(self)


class PagesStore:
    """The live store of :class:`Pages`. Thread-safe."""

    retains: ClassVar[bool] = False

    def __init__(self, config: Pages) -> None:
        self._config = config
        self._budget = None if config.budget is None else parse_bytes(config.budget, path="pages.budget")
        self._arrays: dict[Slot, Array] = {}
        self._used = 0
        self._freed: deque[int] = deque()
        self._lock = threading.RLock()
        self._closed = False

    def put(self, data: Array, /) -> Slot:
        slot = object()
        size = _whole_pages(data.size)
        with self._lock:
            if self._closed:
                raise SlotGoneError(f"{self._config!r} is closed")
            while self._freed:
                self._used -= self._freed.popleft()
            if self._budget is not None and self._used + size > self._budget:
                raise StoreFullError(f"{self._config!r}: {size} bytes do not fit, {self._used} are in use")
            self._used += size
        pages = np.frombuffer(mmap.mmap(-1, size), np.uint8)[: data.size]
        pages[:] = data
        pages.flags.writeable = False
        self._arrays[slot] = pages
        return slot

    def get(self, slot: Slot, /) -> Array:
        array = self._arrays.get(slot)
        if array is None:
            raise SlotGoneError(f"{self._config!r} holds no such slot: it was deleted, or the store is closed")
        return array

    def delete(self, slot: Slot, /) -> None:
        array = self._arrays.pop(slot, None)
        if array is not None:
            self._freed.append(_whole_pages(array.size))

    def close(self) -> None:
        with self._lock:
            self._closed = True
        for slot in list(self._arrays):
            self.delete(slot)


def _whole_pages(nbytes: int) -> int:
    return max(-(-nbytes // mmap.PAGESIZE), 1) * mmap.PAGESIZE
