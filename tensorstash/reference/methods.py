"""The operations become methods of the tensor, as PyTorch attaches its functions after import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorstash.reference import ops
from tensorstash.reference.autograd.engine import backward
from tensorstash.reference.inplace import update
from tensorstash.reference.tensor import Tensor


def _reflected(operation: Callable[..., Tensor]) -> Callable[[Tensor, complex], Tensor]:
    return lambda self, other: operation(other, self)


def _in_place(operation: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda self, *operands: update(self, operation, *operands)


def _backward(self: Tensor, gradient: Tensor | None = None, retain_graph: bool = False) -> None:
    backward(self, gradient, retain_graph=retain_graph)


_BY_THEIR_NAME: tuple[Callable[..., Any], ...] = (
    *(ops.exp, ops.tanh, ops.sigmoid, ops.relu),
    *(ops.clone, ops.contiguous, ops.astype, ops.to),
    *(ops.softmax, ops.sum_to, ops.matmul),
    *(ops.swap_last, ops.expand, ops.reshape, ops.split, ops.as_strided),
)

_METHODS: dict[str, Callable[..., Any]] = {
    **{operation.__name__: operation for operation in _BY_THEIR_NAME},
    "__add__": ops.add,
    "__radd__": ops.add,
    "__sub__": ops.sub,
    "__rsub__": _reflected(ops.sub),
    "__mul__": ops.mul,
    "__rmul__": ops.mul,
    "__truediv__": ops.div,
    "__rtruediv__": _reflected(ops.div),
    "__pow__": ops.power,
    "__neg__": ops.neg,
    "__gt__": ops.gt,
    "__matmul__": ops.matmul,
    "__getitem__": ops.getitem,
    "add_": _in_place(ops.add),
    "sub_": _in_place(ops.sub),
    "mul_": _in_place(ops.mul),
    "sum": ops.total,
    "backward": _backward,
}

for _name, _method in _METHODS.items():
    setattr(Tensor, _name, _method)
