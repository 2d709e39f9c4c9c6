"""Knowledge that Paddle's backward hides from hooks: whether the graph is released, and which exception a hook raised.

A packed value stays in its node until the whole graph is dropped, though the tensor it stood for is released at
backward. And an exception on the way turns into an ``OSError`` with its text, ``KeyboardInterrupt`` included.
"""

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from paddle.base import core
from paddle.base.framework import _dygraph_tracer

from tensorstash.host.blocks import Block


class _Backward(threading.local):
    """State of this thread's backward."""

    release: bool = True
    """Whether it unpacks a tensor for the last time: not in a backward that keeps its graph."""
    error: BaseException | None = None
    """The last exception of a hook that C++ has not given back yet."""


backward = _Backward()


class Unrecorded(Block):
    """A block without gradient recording, which is as it was afterwards, whatever interrupts; unlike ``no_grad``."""

    __slots__ = ("_recording", "_tracer")

    def __init__(self) -> None:
        self._tracer: Any = _dygraph_tracer()  # type: ignore[no-untyped-call]
        self._recording = self._tracer._has_grad

    def enter(self) -> None:
        self._tracer._has_grad = False

    def leave(self, *raised: object) -> None:
        self._tracer._has_grad = self._recording

    undo = finish = leave


def hook_failed(error: BaseException) -> None:
    """Remember a hook's exception, of which C++ makes another one."""
    backward.error = error


def _raise_original() -> None:
    """Raise the hook's exception, if there is one, with its own traceback, cause and context."""
    original, backward.error = backward.error, None
    if original is None:
        return
    context = original.__context__
    try:
        raise original
    finally:
        original.__context__ = context
        del original  # or the frames of the traceback and the exception hold one another


def _guarded(original: Callable[..., Any], retains: Callable[..., bool]) -> Callable[..., Any]:
    """Return a way into backward that raises the exception of a hook itself, and tells hooks if it keeps the graph."""

    @wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        outer, backward.error = backward.error, None
        outer_release = backward.release
        backward.release = not retains(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        except BaseException:
            _raise_original()
            raise
        finally:
            backward.release = outer_release
            backward.error = outer

    return run


def repair() -> None:
    """Replace both ways into backward: ``Tensor.backward``, ``paddle.autograd`` and ``paddle.grad`` look these up."""

    def retains(tensors: Any, grads: Any, retain_graph: bool = False, *_: Any, **__: Any) -> bool:
        return retain_graph

    core.eager.run_backward = _guarded(core.eager.run_backward, retains)
    # It runs on a copy of the graph and never releases the original, whatever retain_graph says.
    core.eager.run_partial_grad = _guarded(core.eager.run_partial_grad, lambda *_, **__: True)
