"""Paddle's backward, which hides from hooks whether the graph is released, and from callers what a hook raised.

A packed value stays in its node until the whole graph is dropped, though the tensor it stood for is released at
backward. And an exception on the way turns into an ``OSError`` with its text, ``KeyboardInterrupt`` included.
"""

import threading
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from paddle.base import core

from tensorstash.host.blocks import Switched


class _Backward(threading.local):
    release: bool = True
    """Whether it unpacks a tensor for the last time: not in a backward that keeps its graph."""
    error: BaseException | None = None
    """The last exception of a hook that C++ has not given back yet."""


backward = _Backward()
"""That of this thread."""

Unrecorded = partial(Switched, core._has_grad, core._set_has_grad, False)  # type: ignore[attr-defined]
"""Makes a block without gradient recording."""


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
