"""Operations that are replaced by ones that mark their call, for the tensors that it saves.

A node of Paddle shows nobody the attributes of its operation. So the functions that some operations are called by are
replaced by ones that note the arguments. Who has taken one before, or calls it from C++, notes nothing: without its
settings an operation has no recipe. An address says something only as long as its node lives, so nothing holds the
settings but what the node has saved.

And Paddle makes the gradient of some operations in the memory of a tensor that they saved, unless somebody else holds
that tensor when it is saved. A hook's result would be written into, be it the user's own. While hooks are in force, the
backward of those operations gets memory of its own.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from paddle import Tensor, _C_ops, _legacy_C_ops

from tensorstash.backends.paddle.hooks import STACK
from tensorstash.backends.paddle.nodes import node_of
from tensorstash.backends.paddle.packed import SETTINGS, WRITES, Settings, call

_NOTED = {"gelu": 1, "layer_norm": 3, "batch_norm": 5, "batch_norm_": 5, "dropout": 2}
"""The number of tensors before the settings of each operation that notes them."""

_SOFTMAX = "c_softmax_with_cross_entropy", "c_softmax_with_multi_label_cross_entropy", "softmax_with_cross_entropy"
WRITERS = (*_SOFTMAX, "cross_entropy_with_softmax", "margin_cross_entropy")
"""Operations, by their names in Paddle's operator modules, whose backward makes its gradient in the saved softmax."""


def repair() -> None:
    """Let operations mark their calls while hooks are in force, and note settings by the address of the new node."""

    def marking(original: Callable[..., Any], tensors: int | None) -> Callable[..., Any]:
        @wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            if not STACK.is_registered:
                return original(*args, **kwargs)
            named = (kwargs[name] for name in kwargs if name == "approximate")  # nothing else comes by name
            mark = WRITES if tensors is None else Settings((*args[tensors:], *named))
            outer, call.settings = call.settings, mark
            try:
                made = original(*args, **kwargs)
            finally:
                call.settings = outer
            output = made[0] if isinstance(made, tuple) else made
            if mark is not WRITES and isinstance(output, Tensor) and not output.is_leaf:
                SETTINGS[node_of(output).node_ptr()] = mark
            return made

        return run

    for name, tensors in _NOTED.items():
        setattr(_C_ops, name, marking(getattr(_C_ops, name), tensors))
    for module in (_C_ops, _legacy_C_ops):
        for name in WRITERS:
            if hasattr(module, name):
                setattr(module, name, marking(getattr(module, name), None))
