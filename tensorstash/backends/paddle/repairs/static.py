"""Programs compiled by ``paddle.jit.to_static``, whose saved tensors no hook ever sees."""

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

from paddle.jit.dy2static.pir_partial_program import PartialProgramLayer

from tensorstash.backends.paddle.hooks import HookStack
from tensorstash.backends.paddle.repairs.patches import Patch
from tensorstash.errors import TensorStashWarning


class StaticGraphWarning(TensorStashWarning):
    """A compiled program ran inside hooks; what it saves for backward stays where it is."""


def static_patches(stack: HookStack) -> tuple[Patch, ...]:
    """Return what makes a compiled program that runs inside hooks say that they do nothing."""

    def warned(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def call(program: PartialProgramLayer, *args: Any, **kwargs: Any) -> Any:
            if stack.current() is not None:
                warnings.warn(
                    "a program compiled by paddle.jit.to_static runs as one operation, so that saved-tensor hooks, "
                    "and tensorstash with them, do nothing inside; leave the part whose activations matter uncompiled",
                    StaticGraphWarning,
                    stacklevel=2,
                )
            return original(program, *args, **kwargs)

        return call

    return Patch(PartialProgramLayer, "__call__", warned), Patch(PartialProgramLayer, "sot_call", warned)
