"""Settings that operations ran with, noted as they are called.

A node of Paddle keeps the attributes of its operation for the gradient, and shows them to nobody. So the functions
that these operations are called by are replaced by ones that note the arguments. Who has taken one before, or calls it
from C++, notes nothing: without its settings an operation has no recipe.

An address says something only as long as its node lives. So nothing holds the settings but what the node has saved.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from types import MappingProxyType
from typing import Any

from paddle import Tensor, _C_ops

from tensorstash.backends.paddle.hooks import HookStack
from tensorstash.backends.paddle.nodes import node_of
from tensorstash.backends.paddle.packed import Settings

_TENSORS: Mapping[str, int] = MappingProxyType(
    {"gelu": 1, "layer_norm": 3, "batch_norm": 5, "batch_norm_": 5, "dropout": 2}
)
"""How many tensors stand before the settings of an operation."""


def repair(stack: HookStack) -> None:
    """Let operations note their settings in the scope in force, by the address of the new node."""

    def noting(original: Callable[..., Any], tensors: int) -> Callable[..., Any]:
        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            scope = stack.current()
            if scope is None:
                return original(*args, **kwargs)
            named = (kwargs[name] for name in kwargs if name == "approximate")  # nothing else comes by name
            settings = Settings((*args[tensors:], *named))
            outer, scope.call = scope.call, settings
            try:
                made = original(*args, **kwargs)
            finally:
                scope.call = outer
            output = made[0] if isinstance(made, tuple) else made
            if isinstance(output, Tensor) and not output.is_leaf:
                scope.settings[node_of(output).node_ptr()] = settings
            return made

        return call

    for name, tensors in _TENSORS.items():
        setattr(_C_ops, name, noting(getattr(_C_ops, name), tensors))
