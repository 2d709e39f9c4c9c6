"""Operations whose backward writes into saved tensors, and a guard for memory that is somebody else's.

Paddle makes the gradient of some operations in the memory of a tensor that they saved, after a look at whether anybody
else holds that tensor. A hook's result has passed that look already: it is written into, be it the user's own.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from paddle import _C_ops, _legacy_C_ops

from tensorstash.backends.paddle.hooks import HookScope, HookStack
from tensorstash.backends.paddle.packed import WRITES

WRITERS = (
    "c_softmax_with_cross_entropy",
    "c_softmax_with_multi_label_cross_entropy",
    "cross_entropy_with_softmax",
    "margin_cross_entropy",
    "softmax_with_cross_entropy",
)
"""Operations, by their names in Paddle's operator modules, whose backward makes its gradient in the saved softmax."""


def repair(stack: HookStack) -> None:
    """Give the backward of those operations memory of its own while hooks are in force."""

    def guarded(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            scope = stack.current()
            if scope is None:
                if not stack.is_registered:
                    return original(*args, **kwargs)
                with HookScope(stack):  # for the hooks of other threads
                    return call(*args, **kwargs)
            outer, scope.call = scope.call, WRITES
            try:
                return original(*args, **kwargs)
            finally:
                scope.call = outer

        return call

    for module in (_C_ops, _legacy_C_ops):
        for name in WRITERS:
            if hasattr(module, name):
                setattr(module, name, guarded(getattr(module, name)))
