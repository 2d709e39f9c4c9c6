"""Nodes of Paddle's graph, looked at without keeping them."""

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import paddle
from paddle import Tensor

ACCUMULATION = "GradNodeAccumulation"
"""The name of the node that a leaf has."""


def node_of(tensor: Tensor) -> Any:
    """Return the node that made a tensor, or the one that accumulates the gradient of a leaf; None if there is none.

    ``Tensor.grad_fn`` counts a reference too many on every call (Paddle 3.3.1), so that the node, all that it has saved
    and the graph behind it are never freed. The references that it counts in vain are taken back here.
    """
    node: Any = tensor.grad_fn
    if node is not None:
        for _ in range(_surplus()):
            _take_back(node)
    return node


def kind_of(node: Any) -> str:
    """Return the name of a node, without the ``Final`` at the end of some."""
    name: str = node.name()
    return name.removesuffix("Final")


@cache
def _surplus() -> int:
    example = paddle._C_ops.empty([1], paddle.float32, paddle.CPUPlace())
    example.stop_gradient = False
    node = example.grad_fn
    # One reference is the variable's, one that of the argument.
    return 0 if node is None else max(sys.getrefcount(node) - 2, 0)


_take_back: Callable[[Any], None] = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_DecRef", ctypes.pythonapi))
