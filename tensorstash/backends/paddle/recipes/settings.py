"""Settings that operations ran with, noted as they are called.

A node of Paddle keeps the attributes of its operation for the gradient, and shows them to nobody. So while hooks are in
force, the functions that these operations are called by are replaced by ones that note the arguments. Who has taken a
function before, or calls it from C++, notes nothing: without its settings an operation has no recipe.
"""

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any

from paddle import Tensor, _C_ops
from paddle.nn import functional

from tensorstash.backends.paddle.hooks import HookStack
from tensorstash.backends.paddle.nodes import node_of
from tensorstash.backends.paddle.repairs.patches import Patch

_REMEMBERED = 65536

Settings = tuple[Hashable, ...]


def settings_patches(stack: HookStack) -> tuple[Patch, ...]:
    """Return a function that notes settings in the scope in force, by the address of the new node."""

    def noting(settings: Callable[..., Settings]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def replacement(original: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(original)
            def call(*args: Any, **kwargs: Any) -> Any:
                made = original(*args, **kwargs)
                scope = stack.current()
                output = made[0] if isinstance(made, tuple) else made
                if scope is not None and isinstance(output, Tensor) and not output.is_leaf:
                    if len(scope.settings) >= _REMEMBERED:
                        scope.settings.clear()
                    scope.settings[node_of(output).node_ptr()] = settings(*args, **kwargs)
                return made

            return call

        return replacement

    return tuple(
        Patch(owner, name, noting(settings))
        for owner, name, settings in (
            (functional, "gelu", _gelu),
            (_C_ops, "gelu", _gelu),
            (_C_ops, "layer_norm", _after(3)),
            (_C_ops, "batch_norm", _after(5)),
            (_C_ops, "batch_norm_", _after(5)),
            (_C_ops, "dropout", _after(2)),
        )
    )


def _gelu(x: Tensor, approximate: bool = False, *_: object, **__: object) -> Settings:
    return (approximate,)


def _after(tensors: int) -> Callable[..., Settings]:
    return lambda *args: args[tensors:]
