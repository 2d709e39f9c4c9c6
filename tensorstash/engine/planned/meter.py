"""How many bytes saved tensors and the engine hold now."""

import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any
from weakref import ref

from tensorstash.host.budget import ByteBudget, Lease
from tensorstash.host.forks import renew_after_fork


class _Watch(ref[Any]):
    """An object that holds a memory. Equal only to itself."""

    __slots__ = ("memory", "seen")
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    memory: "_Memory"
    seen: Any


class _Memory:
    __slots__ = ("blocks", "holders", "key", "nbytes")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.holders = 0
        self.nbytes = 0
        self.blocks: set[Hashable] = set()


class Meter:
    """Counts each memory once, for as long as one of the objects that hold it lives. Thread-safe.

    Objects leave a note when they go, by one operation of C, so that no finalizer takes a lock.

    Args:
        others: bytes that are held besides, such as payloads in memory.
    """

    def __init__(self, others: Callable[[], int]) -> None:
        self._others = others
        self._memories: dict[Hashable, _Memory] = {}
        self._watches: set[_Watch] = set()
        self._gone: deque[_Watch] = deque()
        self._watched = 0
        self.peak = 0
        """Most bytes that were held when something was added, since this was last set."""
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Make the lock anew."""
        self._lock = threading.Lock()

    def watch(self, holder: object, key: Hashable, block: Hashable, nbytes: int, seen: object = None) -> None:
        """Count a memory as long as an object lives.

        Args:
            holder: the object; anything that can be referred to weakly.
            key: of the memory.
            block: which part of the memory it is.
            nbytes: of that part.
            seen: what :meth:`settle` returns when the object is gone.
        """
        watch = _Watch(holder, self._gone.append)
        watch.seen = seen
        with self._lock:
            memory = self._memories.get(key)
            if memory is None:
                memory = self._memories[key] = _Memory(key)
            watch.memory = memory
            memory.holders += 1
            if block not in memory.blocks:
                memory.blocks.add(block)
                memory.nbytes += nbytes
                self._watched += nbytes
            self._watches.add(watch)

    def settle(self) -> list[Any]:
        """Strike out what is gone; return what it was watched with."""
        found = []
        with self._lock:
            while self._gone:
                watch = self._gone.popleft()
                self._watches.discard(watch)
                memory = watch.memory
                memory.holders -= 1
                if not memory.holders:
                    self._watched -= memory.nbytes
                    if self._memories.get(memory.key) is memory:
                        del self._memories[memory.key]
                if watch.seen is not None:
                    found.append(watch.seen)
        return found

    def knows(self, key: Hashable) -> bool:
        """Whether a memory is counted."""
        return key in self._memories

    def held(self) -> int:
        """Return the bytes that are held now, but for what has gone since :meth:`settle`."""
        return self._watched + self._others()

    def look(self) -> int:
        """Return :meth:`held`, and remember the most."""
        held = self.held()
        self.peak = max(self.peak, held)
        return held


class GatedBudget(ByteBudget):
    """Bytes that may be read ahead of backward: as many as a limit says, and as there is room for now.

    Args:
        limit: most bytes in use.
        has_room: whether so many more bytes fit.
    """

    __slots__ = ("_has_room",)

    def __init__(self, limit: int, has_room: Callable[[int], bool]) -> None:
        self._has_room = has_room
        super().__init__(limit)

    def try_acquire(self, nbytes: int) -> Lease | None:
        """Take bytes if they fit now, without waiting; return None if they do not."""
        return super().try_acquire(nbytes) if self._has_room(nbytes) else None
