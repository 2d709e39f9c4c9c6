"""What the tests of the Paddle backend share: scopes, leaves, and bitwise comparison."""

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import paddle
from paddle import Tensor
from paddle.autograd import PyLayer
from paddle.base import core

import tensorstash as ts
from tensorstash.backends.paddle.packed import Scope, Unhooked
from tensorstash.stores.memory import Memory

STASHES = {
    "keep": lambda: ts.stash(ts.Keep(), min_bytes=0, framework="paddle"),
    "kept for its size": lambda: ts.stash(ts.Compress(min_ratio=1), framework="paddle"),
    "compress": lambda: ts.stash(ts.Compress(min_ratio=1), min_bytes=0, framework="paddle"),
    "memory": lambda: ts.stash(ts.StoreIn(Memory()), min_bytes=0, framework="paddle"),
}


def alive() -> int:
    """Number of the live scopes, and of tensors saved beside them, but for those that are set aside."""
    return sum(type(each) in (Scope, Unhooked) for each in gc.get_objects())


def hooked() -> bool:
    """Whether Paddle has a pair of hooks, of whomever."""
    try:
        core.eager.register_saved_tensors_hooks(bits, bits)
    except ValueError:
        return True
    core.eager.reset_saved_tensors_hooks()
    return False


def allocated() -> int:
    """Bytes that Paddle's own allocator has given out."""
    return int(core.host_memory_stat_current_value("Allocated", 0))


def leaf(values: Any, needs_grad: bool = True) -> Tensor:
    return paddle.to_tensor(np.asarray(values, np.float32), stop_gradient=not needs_grad)


def noise(*shape: int, seed: int = 0) -> Any:
    return np.random.RandomState(seed).rand(*shape).astype(np.float32) + 0.25


def bits(tensor: Tensor | None) -> Any:
    """Shape, type and bits of a tensor; None of none, or for the bits of one without memory."""
    if tensor is None:
        return None
    data = tensor.detach().clone().numpy().tobytes() if tensor._is_initialized() else None
    return tuple(tensor.shape), str(tensor.dtype), data


def layer(run: Callable[..., Any], derive: Callable[..., Any]) -> Callable[..., Any]:
    """Return the apply of a layer: ``run`` returns outputs and what to save; ``derive`` gets gradients and that."""

    class Layer(PyLayer):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            outputs, saved = run(*inputs)
            ctx.save_for_backward(*saved)
            return outputs

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return derive(*grads, *ctx.saved_tensor())

    return lambda *inputs: Layer.apply(*inputs)


def gradients(
    program: Callable[..., Tensor], arrays: Sequence[Any], hooks: AbstractContextManager[Any] | None = None
) -> list[Any]:
    """Run a program on inner tensors made from fresh leaves; return the bits of the leaves' gradients.

    Every element of the output weighs differently, so that a transposed gradient does not go unnoticed.
    """
    leaves = [leaf(array) for array in arrays]
    inner = [one * 1.0 for one in leaves]
    with hooks or nullcontext():
        out = program(*inner)
    weights = paddle.arange(1, 1 + int(np.prod(out.shape)), dtype="float32").reshape(out.shape)
    (out * weights).sum().backward()
    return [bits(one.grad) for one in leaves]
