"""Hooks of others, whose ``unpack`` may return any tensor, Paddle's own context manager, and the user's autocast."""

from collections.abc import Callable
from typing import Any, cast

from paddle import Tensor
from paddle.autograd import saved_tensors_hooks
from paddle.base import core

from tensorstash.backends.paddle.hooks import STACK
from tensorstash.backends.paddle.layout import described, dtype_name, fitted, spec_of
from tensorstash.backends.paddle.packed import Pack, Unpack
from tensorstash.errors import StashError
from tensorstash.spec import TensorSpec


def checked(pack: Pack, unpack: Unpack) -> tuple[Pack, Unpack]:
    """Return a pair that does the same and always gives back a tensor that Paddle reads rightly.

    Paddle checks nothing of the result of ``unpack`` and takes only its allocation. Here dtype, shape and place
    are checked, and a tensor with other strides or at another offset than the saved one is copied into its layout.
    """

    def checked_pack(tensor: Tensor) -> tuple[TensorSpec | None, Any] | Tensor:
        has_memory = tensor._is_initialized()
        if not has_memory and 0 not in tensor.shape:
            return tensor.detach()  # elements without memory, with which a pair could do nothing
        can_be_fitted = not tensor.is_dist() and has_memory and dtype_name(tensor.dtype)
        return spec_of(tensor) if can_be_fitted else None, pack(tensor)

    def checked_unpack(packed: tuple[TensorSpec | None, Any] | Tensor) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        spec, value = packed
        tensor = unpack(value)
        if spec is None:
            return tensor
        got = described(tensor) if isinstance(tensor, Tensor) else f"a {type(tensor).__qualname__}"
        if got != str(spec):
            raise StashError(
                f"unpack returned {got}, expected {spec}; return the packed tensor, on the place it came from"
            )
        return fitted(tensor, spec)

    return checked_pack, checked_unpack


def repair() -> None:
    """Route ``paddle.autograd.saved_tensors_hooks``, and ``recompute``, which builds on it, through :data:`STACK`."""
    pairs: Any = saved_tensors_hooks

    def __enter__(hooks: saved_tensors_hooks) -> None:  # noqa: N807
        pack, unpack = hooks.pack_hook, cast(Unpack, hooks.unpack_hook)
        if not (_is_paddles(pack) and _is_paddles(unpack)):
            pack, unpack = checked(pack, unpack)
        STACK.push(hooks, pack, unpack)

    def __exit__(hooks: saved_tensors_hooks, kind: Any, error: Any, trace: Any) -> None:  # noqa: N807
        STACK.pop(hooks, error)

    pairs.__enter__, pairs.__exit__ = __enter__, __exit__


def _is_paddles(hook: Callable[..., Any]) -> bool:
    # Paddle's own pairs are written for Paddle's behaviour: recompute's returns the right allocation under a shape of
    # its own, and must not be copied as if that shape were meant.
    return str(getattr(hook, "__module__", "")).partition(".")[0] == "paddle"


def without_autocast(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a hook that switches autocast off and back; the hook itself in a build without a device that casts."""
    if not (core.is_compiled_with_cuda() or core.is_compiled_with_xpu() or core.get_all_custom_device_type()):
        return hook

    def run(value: Any) -> Any:
        amp: Any = core._get_amp_attrs()  # type: ignore[attr-defined]
        level, amp._amp_level = amp._amp_level, core.AmpLevel.O0
        try:
            return hook(value)
        finally:
            amp._amp_level = level

    return run
