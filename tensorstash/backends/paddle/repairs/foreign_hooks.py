"""Pairs of hooks that are not the engine's: any tensor that ``unpack`` may return, and Paddle's own context manager."""

from collections.abc import Callable
from typing import Any, cast

from paddle import Tensor
from paddle.autograd import saved_tensors_hooks

from tensorstash.backends.paddle.hooks import HookStack
from tensorstash.backends.paddle.layout import dtype_name, fitted, place_name, spec_of
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
        _require(tensor, spec)
        return fitted(tensor, spec)

    return checked_pack, checked_unpack


def _require(tensor: object, spec: TensorSpec) -> None:
    if not isinstance(tensor, Tensor):
        raise StashError(f"unpack returned a {type(tensor).__qualname__}, expected a paddle.Tensor: {spec}")
    if not tensor._is_initialized():
        raise StashError(f"unpack returned a tensor without memory, expected {spec}")
    dtype, place = dtype_name(tensor.dtype), place_name(tensor.place)
    if (dtype, tuple(tensor.shape), place) == (spec.dtype, spec.shape, spec.device):
        return
    got = f"{str(tensor.dtype).removeprefix('paddle.')}{tuple(tensor.shape)} on {place}"
    raise StashError(f"unpack returned {got}, expected {spec}; return the packed tensor, on the place it came from")


def repair(stack: HookStack) -> None:
    """Route ``paddle.autograd.saved_tensors_hooks``, and ``recompute``, which builds on it, through the stack."""
    pairs: Any = saved_tensors_hooks

    def __enter__(hooks: saved_tensors_hooks) -> None:  # noqa: N807
        pack, unpack = hooks.pack_hook, cast(Unpack, hooks.unpack_hook)
        if not (_is_paddles(pack) and _is_paddles(unpack)):
            pack, unpack = checked(pack, unpack)
        stack.push(hooks, pack, unpack)

    def __exit__(hooks: saved_tensors_hooks, kind: Any, error: Any, trace: Any) -> None:  # noqa: N807
        stack.pop(hooks, error)

    pairs.__enter__, pairs.__exit__ = __enter__, __exit__


def _is_paddles(hook: Callable[..., Any]) -> bool:
    # Paddle's own pairs are written for Paddle's behaviour: recompute's returns the right allocation under a shape of
    # its own, and must not be copied as if that shape were meant.
    return str(getattr(hook, "__module__", "")).partition(".")[0] == "paddle"
