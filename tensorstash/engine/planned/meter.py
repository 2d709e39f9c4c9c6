"""How many bytes saved tensors and the engine hold now."""

import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any
from weakref import ref

from tensorstash.engine.ledger import Ledger
from tensorstash.host.budget import ByteBudget, Lease
from tensorstash.host.forks import renew_after_fork

ENOUGH = 2**62
"""A limit that holds nothing back."""


class _Watch(ref[Any]):
    """An object that holds a memory. Equal only to itself."""

    __slots__ = ("is_back", "memory", "seen")
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    memory: "_Memory | None"
    seen: Any
    is_back: bool


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
        ledger: counts payloads, those in budgeted memory among them.
        memory_of: returns what lives as long as the memory of a tensor that is a framework's, and can be referred to
            weakly.
    """

    def __init__(self, ledger: Ledger, memory_of: Callable[[Any], object]) -> None:
        self._ledger = ledger
        self._memory_of = memory_of
        self.is_of_host = True
        """Whether it is host memory that is budgeted."""
        self._tiers: tuple[str, ...] = ("memory", "device")
        """Where payloads lie that take budgeted memory."""
        self.limit = ENOUGH
        """Most bytes that may be held."""
        self.spare = 0
        """Bytes among them that nothing is read ahead into."""
        self.unseen = 0
        """Bytes that are kept without having been looked at."""
        self.due = 0
        """Bytes of what is being brought back."""
        self._memories: dict[Hashable, _Memory] = {}
        self._watches: set[_Watch] = set()
        self.making = 0
        """Bytes of what is being made of others that are brought back for it: it is there beside them."""
        self._gone: deque[_Watch] = deque()
        self._watched = 0
        self._found: deque[tuple[Any, bool]] = deque()
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Make the lock anew."""
        self._lock = threading.Lock()

    def begin(self, *, is_of_host: bool) -> None:
        """Say whether it is host memory that is budgeted, where payloads in memory are counted, or a device's."""
        self.is_of_host = is_of_host
        self._tiers = ("memory", "device") if is_of_host else ("device",)

    def watch(
        self, holder: object, key: Hashable, block: Hashable, nbytes: int, seen: object = None, *, is_back: bool = False
    ) -> None:
        """Count a memory as long as an object lives.

        Args:
            holder: the object; anything that can be referred to weakly.
            key: of the memory.
            block: which part of the memory it is.
            nbytes: of that part.
            seen: what :meth:`settle` returns when the object is gone.
            is_back: whether the memory was brought back, which it returns with that.
        """
        if self._gone:  # so that the key of a memory that has gone is not taken for that of another
            self._strike_out()
        watch = _Watch(holder, self._gone.append)
        watch.seen, watch.is_back = seen, is_back
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

    def watch_back(self, tensor: Any, content: object, nbytes: int, seen: object, *, is_fresh: bool = True) -> None:
        """Count a tensor that was brought back as long as its memory lives, where the framework shows that.

        An operation that works on it may hold its memory alone.

        Args:
            tensor: it.
            content: what was brought back.
            nbytes: of it, or 0 if it is counted already.
            seen: what :meth:`settle` returns when it is gone.
            is_fresh: whether its memory is its own; else it may be that of a tensor that is kept, and is counted there.
        """
        memory = self._memory_of(tensor) if is_fresh else tensor
        self.watch(memory, ("back", id(memory)), id(content), nbytes, seen, is_back=True)

    def await_end(self, holder: object, seen: object) -> None:
        """Have :meth:`settle` return something when an object is gone that holds no memory itself.

        Args:
            holder: the object; anything that can be referred to weakly.
            seen: what is returned.
        """
        watch = _Watch(holder, self._gone.append)
        watch.memory, watch.seen, watch.is_back = None, seen, False
        self._watches.add(watch)

    @property
    def has_news(self) -> bool:
        """Whether there is anything for :meth:`settle` to do; nearly always there is not."""
        return bool(self._gone or self._found)

    def settle(self) -> list[tuple[Any, bool]]:
        """Strike out what is gone; return what it was watched with, since this was last called, and whether that had
        been brought back."""
        self._strike_out()
        found = []
        while self._found:
            found.append(self._found.popleft())
        return found

    def _strike_out(self) -> None:
        with self._lock:
            while self._gone:
                watch = self._gone.popleft()
                self._watches.discard(watch)
                memory = watch.memory
                if memory is not None:
                    self._strike(memory)
                if watch.seen is not None:
                    self._found.append((watch.seen, watch.is_back))

    def _strike(self, memory: _Memory) -> None:
        memory.holders -= 1
        if not memory.holders:
            self._watched -= memory.nbytes
            if self._memories.get(memory.key) is memory:
                del self._memories[memory.key]

    def knows(self, key: Hashable) -> bool:
        """Whether a memory is counted."""
        return key in self._memories

    def held(self) -> int:
        """Return the bytes that are held now besides what was read ahead; what has gone since :meth:`settle`, too."""
        return self._watched + self.unseen + self._ledger.bytes_in(self._tiers)

    def has_room(self, nbytes: int) -> bool:
        """Whether so many bytes that were read ahead, all together, have room."""
        if self._gone:
            self._strike_out()
        return self.held() + self.due + nbytes + self.spare <= self.limit


class GatedBudget(ByteBudget):
    """Bytes that may be read ahead of backward: as many as a limit says, and as there is room for now.

    Args:
        limit: most bytes in use.
        meter: knows how much room there is.
    """

    __slots__ = ("_meter",)

    def __init__(self, limit: int, meter: Meter) -> None:
        self._meter = meter
        super().__init__(limit)

    def try_acquire(self, nbytes: int) -> Lease | None:
        """Take bytes if they fit now, without waiting; return None if they do not."""
        return super().try_acquire(nbytes) if self._meter.has_room(self.used + nbytes) else None
