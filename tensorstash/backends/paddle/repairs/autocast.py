"""Autocast, which must not reach what hooks do."""

from collections.abc import Callable
from typing import Any, TypeVar

from paddle.base import core

A = TypeVar("A")
B = TypeVar("B")


def without_autocast(hook: Callable[[A], B]) -> Callable[[A], B]:
    """Return a hook that switches autocast of its thread off, and back.

    The hook itself where the build has no device that casts.
    """
    if not (core.is_compiled_with_cuda() or core.is_compiled_with_xpu() or core.get_all_custom_device_type()):
        return hook
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
