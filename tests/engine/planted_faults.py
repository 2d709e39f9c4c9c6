"""Faults planted under real stores: what a faulty call does, where it is planted, and when it is lifted."""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import MethodType
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from tensorstash.engine.session import Session
from tensorstash.errors import StoreFullError
from tensorstash.host.arrays import Array
from tensorstash.host.pages import BLOCK, page_aligned, round_up
from tensorstash.protocols import Slot, Store, StoreConfig, Tier
from tensorstash.stores import Disk, Memory
from tensorstash.stores.disk.store import DiskStore
from tensorstash.stores.disk.syscalls import Syscalls
from tensorstash.stores.memory import MemoryStore
from tensorstash.testing.faults import Behaviour, Intercepted


class Board:
    """Faults by the name of the call they are planted in. Thread-safe, without a lock: finalizers delete."""

    def __init__(self) -> None:
        self._planted: dict[str, tuple[Behaviour, range, Iterator[int]]] = {}
        self.strikes: list[str] = []
        """The calls that have misbehaved since the last fault was planted, by name."""

    def plant(self, name: str, behaviour: Behaviour, at: int = 1, times: int = sys.maxsize) -> None:
        """Let calls of a name misbehave from the ``at``-th on, ``times`` of them or until the fault is lifted."""
        self.strikes = []
        self._planted[name] = behaviour, range(at, at + times), count(1)

    def lift(self) -> None:
        """Take all faults away."""
        self._planted = {}

    def run(self, name: str, call: Behaviour, *arguments: Any) -> Any:
        """Call, or misbehave."""
        behaviour, hit, calls = self._planted.get(name, (call, range(0), count()))
        if next(calls) not in hit:
            return call(*arguments)
        self.strikes.append(name)
        return behaviour(call, *arguments)


def _faulty(name: str) -> Any:
    real = getattr(Syscalls, name)
    return lambda self, *arguments: self.board.run(name, MethodType(real, self), *arguments)


@dataclass(frozen=True)
class FaultyCalls(Syscalls):
    """The operating system, with faults."""

    board: Board = field(default_factory=Board)

    write, read, reserve, truncate = map(_faulty, ("write", "read", "reserve", "truncate"))
    available, enable_direct = map(_faulty, ("available", "enable_direct"))


def faulty_calls(**behaviours: Behaviour) -> FaultyCalls:
    """Return system calls that misbehave from the first on, by their names."""
    calls = FaultyCalls()
    for name, behaviour in behaviours.items():
        calls.board.plant(name, behaviour)
    return calls


Opened = WeakKeyDictionary[MemoryStore | DiskStore, Any]
"""Stores in memory and on disk that are alive, and their configurations."""


@dataclass(frozen=True, eq=False)
class Faulty:
    """Opens the real store of a configuration over faulty system calls; its ``put`` and ``get`` take faults too."""

    name: ClassVar[str] = "faulty"
    inner: StoreConfig
    board: Board = field(default_factory=Board, repr=False)
    opened: Opened = field(default_factory=WeakKeyDictionary, repr=False)
    verifies: bool = field(default=True, repr=False)

    @property
    def tier(self) -> Tier:
        return self.inner.tier

    @property
    def used_bytes(self) -> int:
        return sum(store.used_bytes for store in self.opened)

    def excess(self) -> list[str]:
        """Name the stores that hold more than their budgets, on the device too."""
        found = []
        for store, config in list(self.opened.items()):
            taken = store.used_bytes
            if isinstance(store, DiskStore) and not store.slab.file.closed:
                taken = max(taken, os.fstat(store.slab.file.fileno()).st_size)
            if config.budget is not None and taken > config.budget:
                found.append(f"{taken} bytes in {config!r}")
        return found

    def open(self) -> Store:
        return Intercepted(self._open(self.inner), self.board.run, verifies=self.verifies)

    def _open(self, config: StoreConfig) -> Any:
        if isinstance(config, Memory):
            store: Any = MemoryStore(config, None if config.then is None else self._open(config.then))
        else:
            store = DiskStore(config, FaultyCalls(board=self.board)) if isinstance(config, Disk) else config.open()
        self.opened[store] = config
        return store


@dataclass(frozen=True)
class Site:
    """Where a fault is planted: the board of a store, its last directory, or the session under test."""

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


def at_most(nbytes: int) -> Behaviour:
    """Move as many of the first bytes, and say so, also within a block."""

    def behave(call: Behaviour, fd: int, data: Any, offset: int) -> int:
        return min(nbytes, call(fd, _beginning(data, round_up(nbytes)), offset))

    return behave


move_one_block = at_most(BLOCK)


def in_turn(*behaviours: Behaviour) -> Behaviour:
    """Misbehave in one way after the other; the last one stays."""
    left = list(behaviours)

    def behave(call: Behaviour, *arguments: Any) -> Any:
        return (left.pop(0) if left[1:] else left[0])(call, *arguments)

    return behave


def take_nothing(call: Behaviour, *arguments: Any) -> int:
    return 0


def move_one_block_and_no_more(call: Behaviour, fd: int, data: Any, offset: int) -> int:
    return move_one_block(call, fd, data, offset) if _nbytes(data) > 2 * BLOCK else 0


def lose(call: Behaviour, fd: int, parts: Sequence[Array], offset: int) -> int:
    return _nbytes(parts)


def tear(call: Behaviour, fd: int, parts: Sequence[Array], offset: int) -> int:
    written = _joined(parts)
    written[written.size // 2 :] = 0
    return call(fd, [written], offset)


def flip_a_bit(call: Behaviour, fd: int, parts: Sequence[Array], offset: int) -> int:
    written = _joined(parts)
    written[written.size // 2] ^= 1
    return call(fd, [written], offset)


def flip_the_first_bit_read(call: Behaviour, fd: int, out: Array, offset: int) -> int:
    count: int = call(fd, out, offset)
    out[:1] ^= 1
    return count


def _beginning(data: Any, nbytes: int) -> Any:
    """Return as many of the first bytes of an array, or of arrays one after the other: at least the first."""
    if isinstance(data, np.ndarray):
        return data[:nbytes]
    first, *others = data
    return [first[:nbytes], *(_beginning(others, nbytes - first.size) if others and nbytes > first.size else ())]


def _nbytes(data: Any) -> int:
    return data.nbytes if isinstance(data, np.ndarray) else sum(part.nbytes for part in data)


def _joined(parts: Sequence[Array]) -> Array:
    whole = page_aligned(_nbytes(parts))
    np.concatenate(parts, out=whole)
    return whole


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


def calls(name: str, behaviour: Behaviour, *, at: int = 1, prefix: str = "") -> Plant:
    """Let calls of a name misbehave from the ``at``-th on.

    With a ``prefix`` of names of threads, calls on others wait until one of those has come.
    """

    @contextmanager
    def plant(site: Site) -> Iterator[None]:
        board = site.store.board
        board.plant(name, _only_on(prefix, behaviour) if prefix else behaviour, at)
        try:
            yield
            assert board.strikes, "the fault has never struck"
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
    """Hold calls back until the fault is lifted, or for ``longest_s``, so that nothing hangs for ever.

    With ``opens`` they go on as soon as the first has come, as on a slow device.
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
