"""What Paddle's backward does not tell hooks: whether the graph is released, and which exception a hook raised.

A packed value stays in its node until the whole graph is dropped, though the tensor it stood for is released at
backward. And an exception of a hook turns into an ``OSError`` with its text, ``KeyboardInterrupt`` included, and
leaves gradient recording off for the thread.
"""

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from paddle import framework
from paddle.base import core

from tensorstash.backends.paddle_patches import Patch

releasing: set[int] = set()
"""Threads inside a backward that releases its graph: what is unpacked there is unpacked for the last time."""


def is_recording() -> bool:
    """Whether this thread records gradients."""
    recording: bool = framework._dygraph_tracer()._has_grad
    return recording


def set_recording(mode: bool) -> None:
    """Switch gradient recording of this thread."""
    framework._dygraph_tracer()._has_grad = mode


class _Failures(threading.local):
    """The exception that a hook of this thread raised last and that C++ has not given back yet."""

    error: BaseException | None = None


_failures = _Failures()


def hook_failed(error: BaseException) -> None:
    """Remember what a hook raised, for :func:`original_of`."""
    _failures.error = error


def original_of(error: BaseException | None) -> BaseException | None:
    """Return the hook's exception that ``error`` was made from in C++, or None if there is none; forgets it."""
    original, _failures.error = _failures.error, None
    if original is None or type(error) is not OSError or type(original).__name__ not in str(error):
        return None
    return original


def raise_original(error: BaseException | None) -> None:
    """Raise the hook's exception that ``error`` was made from, with its own traceback, cause and context."""
    original = original_of(error)
    if original is None:
        return
    context = original.__context__
    try:
        raise original
    finally:
        original.__context__ = context
        del original, error  # or the frames of the traceback and the exception hold one another


def _guarded(original: Callable[..., Any], releases: Callable[..., bool]) -> Callable[..., Any]:
    @wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        thread = threading.get_ident()
        outer_releases = thread in releasing
        outer_failure, _failures.error = _failures.error, None
        recording = is_recording()
        (releasing.add if releases(*args, **kwargs) else releasing.discard)(thread)
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            set_recording(recording)
            raise_original(error)
            raise
        finally:
            (releasing.add if outer_releases else releasing.discard)(thread)
            _failures.error = outer_failure

    return run


def _backward(original: Callable[..., Any]) -> Callable[..., Any]:
    def releases(tensors: Any, grads: Any, retain_graph: bool = False, *_: Any, **__: Any) -> bool:
        return not retain_graph

    return _guarded(original, releases)


def _partial_grad(original: Callable[..., Any]) -> Callable[..., Any]:
    # It runs on a copy of the graph and never releases the original, whatever retain_graph says.
    return _guarded(original, lambda *_, **__: False)


PATCHES = (
    Patch(core.eager, "run_backward", _backward),
    Patch(core.eager, "run_partial_grad", _partial_grad),
)
"""Every way into backward: ``Tensor.backward``, ``paddle.autograd.backward`` and ``paddle.grad`` look these up."""
