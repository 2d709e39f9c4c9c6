"""Surroundings in which hooks run: autocast, which must not reach them, and compiled programs, which hide from them."""

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from paddle.base import core
from paddle.jit.dy2static.pir_partial_program import PartialProgramLayer

from tensorstash.backends.paddle.hooks import HookStack
from tensorstash.errors import TensorStashWarning

A = TypeVar("A")
B = TypeVar("B")


def without_autocast(hook: Callable[[A], B]) -> Callable[[A], B]:
    """Return a hook that runs with autocast off; the hook itself where the build has no device that casts."""
    if not (core.is_compiled_with_cuda() or core.is_compiled_with_xpu() or core.get_all_custom_device_type()):
        return hook
    return autocast_off(hook)


def autocast_off(hook: Callable[[A], B]) -> Callable[[A], B]:
    """Return a hook that switches autocast of its thread off, and back."""
    attributes: Any = core._get_amp_attrs  # type: ignore[attr-defined]
    off = core.AmpLevel.O0

    def run(value: A) -> B:
        amp = attributes()
        level = amp._amp_level
        if level == off:
            return hook(value)
        amp._amp_level = off
        try:
            return hook(value)
        finally:
            amp._amp_level = level

    return run


class StaticGraphWarning(TensorStashWarning):
    """A compiled program ran inside hooks; its saved tensors stay where they are."""


def repair(stack: HookStack) -> None:
    """Make a compiled program say that hooks around it do nothing."""

    def warned(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def call(program: PartialProgramLayer, *args: Any, **kwargs: Any) -> Any:
            scope = stack.current()
            if scope is not None and scope.ready:
                warnings.warn(
                    "a program compiled by paddle.jit.to_static runs as one operation, so that saved-tensor hooks, "
                    "and tensorstash with them, do nothing inside; leave the part whose activations matter uncompiled",
                    StaticGraphWarning,
                    stacklevel=2,
                )
            return original(program, *args, **kwargs)

        return call

    program: Any = PartialProgramLayer
    program.__call__, program.sot_call = warned(program.__call__), warned(program.sot_call)
