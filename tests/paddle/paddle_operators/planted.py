"""Jobs that do wrong, to see that it is found."""

import os
import signal

import paddle
from paddle.autograd import saved_tensors_hooks

from .cases import Case, run
from .jobs import difference


def faulty(case: Case) -> str | None:
    """Crash in one layout of one row; save as Paddle's documentation does, which gets layouts wrong; give back the very
    tensor that was saved."""
    if case.row == "paddle.exp":
        if case.layout == "sliced":
            os.kill(os.getpid(), signal.SIGSEGV)
        return "alive"
    if case.row == "paddle.square":
        return difference(run(case), case, saved_tensors_hooks(lambda tensor: tensor.numpy(), paddle.to_tensor))
    return difference(run(case), case, saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor))
