"""State of the calling thread: gradient recording, the stack of saved-tensor hooks, the recording clock."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class HookPair(NamedTuple):
    """A pack and an unpack function; compared by identity when a scope ends."""

    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]


class _ThreadState(threading.local):
    def __init__(self) -> None:
        self.grad_enabled = True
        self.hooks: list[HookPair] = []
        self.clock = itertools.count()


_thread = _ThreadState()


def is_grad_enabled() -> bool:
    """Tell whether operations of this thread are recorded."""
    return _thread.grad_enabled


@contextmanager
def set_grad_enabled(mode: bool) -> Iterator[None]:
    """Record operations of this thread, or do not, for one scope; also a decorator.

    >>> with set_grad_enabled(False):
    ...     is_grad_enabled()
    False
    """
    previous = _thread.grad_enabled
    _thread.grad_enabled = mode
    try:
        yield
    finally:
        _thread.grad_enabled = previous


@contextmanager
def no_grad() -> Iterator[None]:
    """Record nothing in this thread for one scope; also a decorator."""
    with set_grad_enabled(False):
        yield


@contextmanager
def enable_grad() -> Iterator[None]:
    """Record operations of this thread for one scope, also inside `no_grad`; also a decorator."""
    with set_grad_enabled(True):
        yield


def next_sequence() -> int:
    """Give the next tick of this thread's recording clock; later nodes run first in backward."""
    return next(_thread.clock)


def hook_stack() -> list[HookPair]:
    """Give this thread's stack of saved-tensor hooks, innermost last."""
    return _thread.hooks
