"""The scope of one thread inside of a block: the hooks of a session."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Generic, TypeVar

from tensorstash.abilities import Readers
from tensorstash.engine.advice import Adviser
from tensorstash.engine.readers import Trail
from tensorstash.host.blocks import Block

S = TypeVar("S")

Inside = tuple[Readers[Any] | None, Trail]


class Thread(threading.local):
    """The position of a thread within one session."""

    def __init__(self) -> None:
        self.module = ""
        self.readers: Readers[Any] | None = None
        self.trail: Trail = [0, 0]

    def enters(self, inside: Inside) -> None:
        self.readers, self.trail = inside

    def is_inside(self, module: str) -> None:
        self.module = module


_innermost: ContextVar[Adviser | None] = ContextVar("_innermost", default=None)
"""Whose scope is in force, so that the one around it can be told of it."""


class Scope(Block, Generic[S]):
    """One entry of a session: its hooks are in force, and ``ended`` is called behind a block that raises nothing."""

    def __init__(
        self,
        session: S,
        adviser: Adviser,
        thread: Thread,
        hooks: AbstractContextManager[None],
        readers: Readers[Any] | None,
        ended: Callable[[], None],
    ) -> None:
        self._session, self._adviser, self._thread, self._hooks, self._ended = session, adviser, thread, hooks, ended
        self._inside: Inside = readers, [0, 0]
        self._outside: Inside | None = None  # while the scope is in force
        self._around: Adviser | None = None
        self._stashed_before = 0

    def enter(self) -> S:
        self._around, self._stashed_before = _innermost.get(), self._adviser.ledger.stashed_bytes
        self._outside = self._thread.readers, self._thread.trail  # first: an interrupt sets them back
        self._thread.enters(self._inside)
        _innermost.set(self._adviser)
        self._hooks.__enter__()
        return self._session

    def leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        try:
            self._hooks.__exit__(kind, error, trace)
        finally:
            self._set_back()
        if self._around is not None:
            self._around.covered(self._adviser, self._adviser.ledger.stashed_bytes - self._stashed_before)
        if error is None:
            self._ended()

    def undo(self) -> None:
        if self._outside is not None:
            if isinstance(self._hooks, Block):
                self._hooks.undo()
            self._set_back()

    def finish(self, *raised: Any) -> None:
        if self._outside is not None:
            self.leave(*raised)

    def _set_back(self) -> None:
        if self._outside is not None:
            self._thread.enters(self._outside)
        _innermost.set(self._around)
        self._outside = None
