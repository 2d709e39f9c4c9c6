"""Faults planted under real stores: what a faulty call does, where it is planted, and when it is lifted."""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakSet

import numpy as np

from tensorstash.engine.session import Session
from tensorstash.errors import StoreFullError
from tensorstash.host.arrays import Array
from tensorstash.host.pages import BLOCK, page_aligned
from tensorstash.protocols import Slot, Store, StoreConfig, Tier
from tensorstash.stores import Disk, Tiered
from tensorstash.stores.disk.store import DiskStore
from tensorstash.stores.disk.syscalls import Syscalls
from tensorstash.stores.memory import MemoryStore
from tensorstash.stores.tiered import TieredStore

Behaviour = Callable[..., Any]
"""What a faulty call does; gets the real call and its arguments."""


class Board:
    """Faults by the name of the call they are planted in. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._planted: dict[str, tuple[Behaviour, range]] = {}
        self._calls = 0
        self.struck = 0
        """How often a planted behaviour has run."""

    def plant(self, name: str, behaviour: Behaviour, at: int, times: int = sys.maxsize) -> None:
        """Let calls of a name misbehave from the ``at``-th on, ``times`` of them or until the fault is lifted."""
        with self._lock:
            self._calls = self.struck = 0
            self._planted[name] = behaviour, range(at, at + times)

    def lift(self) -> None:
        with self._lock:
            self._planted.clear()

    def run(self, name: str, call: Behaviour, *arguments: Any) -> Any:
        with self._lock:
            behaviour, hit = self._planted.get(name, (call, range(0)))
            self._calls += bool(hit)
            is_hit = self._calls in hit
            self.struck += is_hit
        return behaviour(call, *arguments) if is_hit else call(*arguments)


@dataclass(frozen=True)
class FaultyCalls(Syscalls):
    """The operating system, with faults."""

    board: Board = field(default_factory=Board)

    def write(self, fd: int, parts: Sequence[Array], offset: int) -> int:
        def write(fd: int, data: Array, offset: int) -> int:
            return Syscalls.write(self, fd, [data], offset)

        return self.board.run("write", write, fd, _joined(parts), offset)

    def read(self, fd: int, out: Array, offset: int) -> int:
        return self.board.run("read", super().read, fd, out, offset)

    def reserve(self, fd: int, start: int, length: int) -> None:
        self.board.run("reserve", super().reserve, fd, start, length)


@dataclass(frozen=True, eq=False)
class Faulty:
    """Opens the real store of a configuration over faulty system calls; its ``put`` and ``get`` take faults too.

    Args:
        inner: what to open.
        board: where faults are planted.
        opened: the stores in memory and on disk that were opened, and are alive; policies are remembered, stores not.
        verifies: whether to leave the checksums to stores that have their own.
    """

    name: ClassVar[str] = "faulty"
    inner: StoreConfig
    board: Board = field(default_factory=Board, repr=False)
    opened: WeakSet[MemoryStore | DiskStore] = field(default_factory=WeakSet, repr=False)
    verifies: bool = field(default=True, repr=False)

    @property
    def tier(self) -> Tier:
        return self.inner.tier

    @property
    def used_bytes(self) -> int:
        return sum(store.used_bytes for store in self.opened)

    def open(self) -> "FaultyStore":
        return FaultyStore(self, self._open(self.inner))

    def _open(self, config: StoreConfig) -> Any:
        if isinstance(config, Tiered):
            first = self._open(config.first)
            return TieredStore(config, first, self._open(config.then))
        store: Any = DiskStore(config, FaultyCalls(board=self.board)) if isinstance(config, Disk) else config.open()
        self.opened.add(store)
        return store


class FaultyStore:
    """The live store of :class:`Faulty`."""

    def __init__(self, config: Faulty, inner: Any) -> None:
        self.retains = inner.retains
        self.verifies = config.verifies and inner.verifies
        self._board = config.board
        self._inner = inner

    def put(self, data: Array, /) -> Slot:
        return self._board.run("put", self._inner.put, data)

    def get(self, slot: Slot, /) -> Array:
        data: Array = self._board.run("get", self._inner.get, slot)
        return data

    def delete(self, slot: Slot, /) -> None:
        self._inner.delete(slot)

    def close(self) -> None:
        self._inner.close()


@dataclass(frozen=True)
class Site:
    """Where a fault is planted.

    Args:
        store: what is opened; its board takes the fault.
        directory: the last directory of the store.
        session: the session under test; None before there is one.
    """

    store: Faulty
    directory: Path
    session: Session[Any] | None = None


Plant = Callable[[Site], AbstractContextManager[None]]
"""The fault is there during the context."""


# What a faulty call does


def refuse(number: int) -> Behaviour:
    def behave(call: Behaviour, *arguments: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return behave


def move_one_block(call: Behaviour, fd: int, data: Array, offset: int) -> int:
    return call(fd, data[:BLOCK], offset)


def move_one_block_and_no_more(call: Behaviour, fd: int, data: Array, offset: int) -> int:
    return call(fd, data[:BLOCK], offset) if data.nbytes > 2 * BLOCK else 0


def lose(call: Behaviour, fd: int, data: Array, offset: int) -> int:
    return data.nbytes


def tear(call: Behaviour, fd: int, data: Array, offset: int) -> int:
    written = _copy(data)
    written[data.size // 2 :] = 0
    return call(fd, written, offset)


def flip_a_bit(call: Behaviour, fd: int, data: Array, offset: int) -> int:
    written = _copy(data)
    written[data.size // 2] ^= 1
    return call(fd, written, offset)


def _joined(parts: Sequence[Array]) -> Array:
    whole = page_aligned(sum(part.nbytes for part in parts))
    np.concatenate(parts, out=whole)
    return whole


def _copy(data: Array) -> Array:
    copy = page_aligned(data.nbytes)
    copy[:] = data
    return copy


def lack_a_byte(call: Behaviour, slot: Slot) -> Array:
    return call(slot)[:-1]


def alter_a_byte(call: Behaviour, slot: Slot) -> Array:
    data = call(slot).copy()
    data[data.size // 2] ^= 1
    return data


def lose_the_slot(call: Any, slot: Slot) -> Array:
    call.__self__.delete(slot)
    return call(slot)


def end_the_thread(call: Behaviour, *arguments: Any) -> Any:
    raise SystemExit


# Where it is planted


def calls(name: str, behaviour: Behaviour, *, at: int = 1, times: int = sys.maxsize, prefix: str = "") -> Plant:
    """Let calls misbehave.

    Args:
        name: of the calls.
        behaviour: what they do.
        at: the first of them that does.
        times: how many of them do.
        prefix: of the names of the threads on which they do; calls on others wait until one of those has come.
    """

    @contextmanager
    def plant(site: Site) -> Iterator[None]:
        board = site.store.board
        board.plant(name, _only_on(prefix, behaviour) if prefix else behaviour, at, times)
        try:
            yield
            assert board.struck, "the fault has never struck"
        finally:
            board.lift()

    return plant


def _only_on(prefix: str, behaviour: Behaviour) -> Behaviour:
    came = threading.Event()

    def behave(call: Behaviour, *arguments: Any) -> Any:
        if threading.current_thread().name.startswith(prefix):
            came.set()
            return behaviour(call, *arguments)
        assert came.wait(60)
        return call(*arguments)

    return behave


def used_up(*, at: int) -> Plant:
    """Fill the budget just before a record."""

    @contextmanager
    def plant(site: Site) -> Iterator[None]:
        ballast: list[tuple[Store, Slot]] = []

        def behave(call: Any, data: Array) -> Slot:
            store: Store = call.__self__
            while True:
                try:
                    ballast.append((store, store.put(page_aligned(BLOCK))))
                except StoreFullError:
                    return call(data)

        with calls("put", behave, at=at)(site):
            yield
        for store, slot in ballast:
            store.delete(slot)

    return plant


def held(name: str, *, prefix: str = "", opens: bool = False, longest_s: float = 60.0) -> Plant:
    """Hold calls back.

    Args:
        name: of the calls.
        prefix: of the names of the threads on which they are held, as in :func:`calls`.
        opens: let them go as soon as the first has come, as a slow device does; else when the fault is lifted.
        longest_s: let them go after this many seconds, so that nothing hangs for ever.
    """

    @contextmanager
    def plant(site: Site) -> Iterator[None]:
        gate = threading.Event()
        arrived = threading.Event()

        def wait(call: Behaviour, *arguments: Any) -> Any:
            arrived.set()
            if not gate.wait(longest_s):
                gate.set()
            return call(*arguments)

        opener = threading.Thread(target=lambda: (arrived.wait(60), gate.set()))
        if opens:
            opener.start()
        with calls(name, wait, prefix=prefix)(site):
            try:
                yield
            finally:
                gate.set()
                arrived.set()
        if opens:
            opener.join()

    return plant
