"""The operations become methods of the tensor, as PyTorch attaches its functions after import."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from tensorstash.reference.autograd.engine import backward
from tensorstash.reference.inplace import copy_, update
from tensorstash.reference.ops import elementwise as by_element
from tensorstash.reference.ops import indexing, reduction, shape
from tensorstash.reference.tensor import Tensor


def _reflected(operation: Callable[..., Tensor]) -> Callable[[Tensor, complex], Tensor]:
    return lambda self, other: operation(other, self)


def _in_place(operation: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda self, *operands: update(self, operation, *operands)


def _backward(self: Tensor, gradient: Tensor | None = None, retain_graph: bool = False) -> None:
    backward([self], [gradient], retain_graph=retain_graph)


_BY_THEIR_NAME: tuple[Callable[..., Any], ...] = (
    *(by_element.exp, by_element.tanh, by_element.sigmoid, by_element.relu),
    *(by_element.clone, by_element.contiguous, by_element.astype, by_element.to, copy_),
    *(reduction.softmax, reduction.sum_to, reduction.matmul),
    *(shape.transpose, shape.swap_last, shape.expand, shape.reshape, shape.split),
    *(shape.as_layout, shape.as_strided),
)

METHODS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        **{operation.__name__: operation for operation in _BY_THEIR_NAME},
        "__add__": by_element.add,
        "__radd__": by_element.add,
        "__iadd__": _in_place(by_element.add),
        "__sub__": by_element.sub,
        "__rsub__": _reflected(by_element.sub),
        "__isub__": _in_place(by_element.sub),
        "__mul__": by_element.mul,
        "__rmul__": by_element.mul,
        "__imul__": _in_place(by_element.mul),
        "__truediv__": by_element.div,
        "__rtruediv__": _reflected(by_element.div),
        "__pow__": by_element.power,
        "__neg__": by_element.neg,
        "__gt__": by_element.gt,
        "__matmul__": reduction.matmul,
        "__getitem__": indexing.getitem,
        "add_": _in_place(by_element.add),
        "sub_": _in_place(by_element.sub),
        "mul_": _in_place(by_element.mul),
        "fill_": copy_,
        "sum": reduction.reduce_sum,
        "backward": _backward,
    }
)

for _name, _method in METHODS.items():
    setattr(Tensor, _name, _method)
