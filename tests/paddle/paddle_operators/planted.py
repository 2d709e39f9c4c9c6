"""Jobs that do wrong, to see that it is found."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import paddle
from paddle.autograd import saved_tensors_hooks
from paddle.base import core

from .cases import Case, run
from .jobs import difference


def faulty(case: Case) -> Any:
    """Do what is wrong with each row."""
    return {"paddle.exp": dies_when_sliced, "paddle.square": documented_example}.get(case.row, passed_through)(case)


def dies_when_sliced(case: Case) -> str:
    """Crash in one of the layouts."""
    if case.layout == "sliced":
        os.kill(os.getpid(), signal.SIGSEGV)
    return "alive"


def documented_example(case: Case) -> str | None:
    """Save tensors as Paddle's documentation does, which gets layouts wrong."""
    return difference(run(case), case, saved_tensors_hooks(_array, paddle.to_tensor))


def passed_through(case: Case) -> str | None:
    """Give back the very tensor that was saved."""
    return difference(run(case), case, _passing())


@contextmanager
def _passing() -> Iterator[None]:
    # Not by Paddle's own context manager, which this package guards once it is in use.
    core.eager.register_saved_tensors_hooks(_same, _same)
    try:
        yield
    finally:
        core.eager.reset_saved_tensors_hooks()


def _array(tensor: Any) -> Any:
    return tensor.numpy()


def _same(tensor: Any) -> Any:
    return tensor
