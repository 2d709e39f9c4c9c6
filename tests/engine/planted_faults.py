"""Faults planted under real stores: what a faulty call does, where it is planted, and when it is lifted."""

import ctypes
import errno
import os
import resource
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal
from unittest import mock

from tensorstash.buffers import Array
from tensorstash.engine.session import Session
from tensorstash.engine.workers import Workers
from tensorstash.errors import StoreFullError
from tensorstash.protocols import Slot, Store, StoreConfig, Tier
from tensorstash.stores import Disk, Tiered
from tensorstash.stores.disk import DiskStore
from tensorstash.stores.memory import MemoryStore
from tensorstash.stores.pages import BLOCK, page_aligned
from tensorstash.stores.syscalls import Syscalls
from tensorstash.stores.tiered import TieredStore

Behaviour = Callable[..., Any]
"""What a faulty call does; gets the real call and its arguments."""


class Board:
    """Faults by the name of the call they are planted in. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._planted: dict[str, tuple[Behaviour, int]] = {}
        self._calls = 0
        self.struck = 0
        """How often a planted behaviour has run."""

    def plant(self, name: str, behaviour: Behaviour, at: int) -> None:
        """Let the calls of a name misbehave from the ``at``-th on, until the fault is lifted."""
        with self._lock:
            self._calls = self.struck = 0
            self._planted[name] = behaviour, at

    def lift(self) -> None:
        with self._lock:
            self._planted.clear()

    def run(self, name: str, call: Behaviour, *arguments: Any) -> Any:
        with self._lock:
            behaviour, at = self._planted.get(name, (call, 0))
            if at:
                self._calls += 1
                is_hit = self._calls >= at
                self.struck += is_hit
        return behaviour(call, *arguments) if at and is_hit else call(*arguments)


@dataclass(frozen=True)
class FaultyCalls(Syscalls):
    """The operating system, with faults."""

    board: Board = field(default_factory=Board)

    def write(self, fd: int, data: Array, offset: int) -> int:
        return self.board.run("write", super().write, fd, data, offset)

    def read(self, fd: int, out: Array, offset: int) -> int:
        return self.board.run("read", super().read, fd, out, offset)

    def reserve(self, fd: int, start: int, length: int) -> None:
        self.board.run("reserve", super().reserve, fd, start, length)


@dataclass(frozen=True, eq=False)
class Faulty:
    """Opens the real store of a configuration over faulty system calls; its ``put`` and ``get`` take faults too."""

    name: ClassVar[str] = "faulty"
    inner: StoreConfig
    board: Board = field(default_factory=Board, repr=False)
    opened: list[MemoryStore | DiskStore] = field(default_factory=list, repr=False)

    @property
    def tier(self) -> Tier:
        return self.inner.tier

    @property
    def used_bytes(self) -> int:
        return sum(store.used_bytes for store in self.opened)

    def open(self) -> "FaultyStore":
        return FaultyStore(self.board, self._open(self.inner))

    def _open(self, config: StoreConfig) -> Any:
        if isinstance(config, Tiered):
            first = self._open(config.first)
            return TieredStore(config, first, self._open(config.then))
        store: Any = DiskStore(config, FaultyCalls(board=self.board)) if isinstance(config, Disk) else config.open()
        self.opened.append(store)
        return store


class FaultyStore:
    """The live store of :class:`Faulty`."""

    def __init__(self, board: Board, inner: Store) -> None:
        self.retains = inner.retains
        self._board = board
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

    def workers(self, which: Literal["writer", "reader"]) -> Workers:
        assert self.session is not None
        return self.session._writers if which == "writer" else self.session._state.ahead._readers


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


def _copy(data: Array) -> Array:
    copy = page_aligned(data.nbytes)
    copy[:] = data
    return copy


def lack_a_byte(call: Behaviour, slot: Slot) -> Array:
    return call(slot)[:-1]


def lose_the_slot(call: Any, slot: Slot) -> Array:
    call.__self__.delete(slot)
    return call(slot)


def end_the_thread(prefix: str) -> Behaviour:
    def behave(call: Behaviour, *arguments: Any) -> Any:
        if threading.current_thread().name.startswith(prefix):
            raise SystemExit
        return call(*arguments)

    return behave


# Where it is planted


def calls(name: str, behaviour: Behaviour, *, at: int = 1) -> Plant:
    """Let the calls of a name misbehave from the ``at``-th on."""

    @contextmanager
    def plant(site: Site) -> Iterator[None]:
        board = site.store.board
        board.plant(name, behaviour, at)
        try:
            yield
            assert board.struck, "the fault has never struck"
        finally:
            board.lift()

    return plant


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


def held(name: str, *, thread: str = "", opens: bool = False, longest_s: float = 60.0) -> Plant:
    """Hold calls back.

    Args:
        name: of the calls.
        thread: only on threads whose names begin so.
        opens: let them go as soon as the first has come, as a slow device does; else when the fault is lifted.
        longest_s: let them go after this many seconds, so that nothing hangs for ever.
    """

    @contextmanager
    def plant(site: Site) -> Iterator[None]:
        gate = threading.Event()
        arrived = threading.Event()

        def behave(call: Behaviour, *arguments: Any) -> Any:
            if threading.current_thread().name.startswith(thread):
                arrived.set()
                if not gate.wait(longest_s):
                    gate.set()
            return call(*arguments)

        opener = threading.Thread(target=lambda: (arrived.wait(60), gate.set()))
        if opens:
            opener.start()
        with calls(name, behave)(site):
            try:
                yield
                assert arrived.is_set(), "no call was held back"
            finally:
                gate.set()
                arrived.set()
        if opens:
            opener.join()

    return plant


def killed(which: Literal["writer", "reader"]) -> Plant:
    """Kill threads that wait for work."""

    @contextmanager
    def plant(site: Site) -> Iterator[None]:
        workers = site.workers(which)
        workers.submit(lambda: None).result(60)
        victims = list(workers._executor._threads)
        for victim in victims:
            ident, error = ctypes.c_ulong(victim.ident or 0), ctypes.py_object(SystemExit)
            assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, error) == 1
        yield
        for victim in victims:
            victim.join(60)
            assert not victim.is_alive()

    return plant


@contextmanager
def shut_down(site: Site) -> Iterator[None]:
    """No work is accepted any more, as while the interpreter exits."""
    for which in ("writer", "reader"):
        site.workers(which)._executor.shutdown()
    yield


@contextmanager
def no_new_thread(site: Site) -> Iterator[None]:
    """The system has no room for another thread."""
    start, refused = threading.Thread.start, []

    def refuse_ours(thread: threading.Thread) -> None:
        if thread.name.startswith("tensorstash-"):
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    with mock.patch.object(threading.Thread, "start", refuse_ours):
        yield
    assert refused


@contextmanager
def no_directory(site: Site) -> Iterator[None]:
    site.directory.rmdir()
    try:
        yield
    finally:
        site.directory.mkdir()


@contextmanager
def no_permission(site: Site) -> Iterator[None]:
    """This user, who is not the superuser, may read the directory and not write to it."""
    user, mode, owner = os.geteuid(), stat.S_IRUSR | stat.S_IXUSR, site.directory.stat().st_uid
    if user == 0:
        os.chown(site.directory, 65534, -1)
    site.directory.chmod(mode)
    if user == 0:
        os.seteuid(65534)
    try:
        assert not os.access(site.directory, os.W_OK, effective_ids=True)
        yield
    finally:
        os.seteuid(user)
        site.directory.chmod(stat.S_IRWXU)
        os.chown(site.directory, owner, -1)


@contextmanager
def no_descriptor(site: Site) -> Iterator[None]:
    """The process has every file open that it may; the limit is put back afterwards."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 1, hard))
    try:
        while True:
            try:
                taken.append(os.open(os.devnull, os.O_RDONLY))
            except OSError as error:
                assert error.errno == errno.EMFILE
                break
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)
