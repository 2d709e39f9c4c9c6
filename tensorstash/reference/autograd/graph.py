"""State of the calling thread, and the graph that it records: nodes, and the edges along which gradients flow."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

from tensorstash.reference.storage.dtypes import DType
from tensorstash.reference.storage.layout import Shape


class _ThreadState(threading.local):
    def __init__(self) -> None:
        self.grad_enabled = True
        self.hooks: list[Any] = []


_thread = _ThreadState()
_clock = itertools.count()  # of the whole process: a node is recorded after those that its edges lead to


def is_grad_enabled() -> bool:
    """Tell whether operations of this thread are recorded."""
    return _thread.grad_enabled


@contextmanager
def set_grad_enabled(mode: bool) -> Iterator[None]:
    """Record operations of this thread, or do not, for one scope."""
    previous = _thread.grad_enabled
    _thread.grad_enabled = mode
    try:
        yield
    finally:
        _thread.grad_enabled = previous


def no_grad() -> AbstractContextManager[None]:
    """Record nothing in this thread for one scope."""
    return set_grad_enabled(False)


def hook_stack() -> list[Any]:
    """Give this thread's stack of saved-tensor hooks, innermost last."""
    return _thread.hooks


class Meta(NamedTuple):
    """Shape and type of a gradient; all that is known of a tensor whose elements are not saved."""

    shape: Shape
    dtype: DType
    device: str

    def __str__(self) -> str:
        return f"a {self.dtype} tensor of shape {self.shape} on {self.device}"


class Node:
    """One recorded operation of one result; owns its saved tensors and, by its edges, all that was recorded before it.

    Edges lead to the nodes of its inputs, None where no gradient is wanted. A chain of any length is freed without deep
    recursion: every link is an object that CPython's deferred deallocation ("trashcan") covers.
    """

    __slots__ = ("__weakref__", "edges", "key", "sequence")

    def __init__(self, edges: Sequence[Node | None]) -> None:
        self.edges = tuple(edges)
        self.key = id(self)
        self.sequence = next(_clock)

    @property
    def name(self) -> str:
        return type(self).__name__

    def apply(self, gradient: Any) -> Sequence[Any]:
        """Give the gradient for each edge, given that of the result; None stands for zero."""
        raise NotImplementedError

    def release(self) -> None:
        """Free the saved tensors; a later `apply` that needs them raises."""
