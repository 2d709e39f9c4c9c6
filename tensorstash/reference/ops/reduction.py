"""Operations that fold dimensions; `axis` is one axis, several, or None for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from tensorstash.reference.autograd.graph import Meta
from tensorstash.reference.autograd.primitive import Primitive, primitive
from tensorstash.reference.storage.dtypes import Array
from tensorstash.reference.storage.layout import Shape, resolve_axes
from tensorstash.reference.tensor import Tensor

Axis: TypeAlias = "int | Sequence[int] | None"


def _spread(g: Tensor, x_meta: Meta, axes: Shape) -> Tensor:
    """Repeat a reduced tensor over the axes it was reduced along."""
    kept = (1 if axis in axes else size for axis, size in enumerate(x_meta.shape))
    return g.reshape(*kept).expand(*x_meta.shape)


fold_sum = Primitive("fold_sum", lambda x, *, axes: np.sum(x, axis=axes), x=_spread)


def reduce_sum(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Give the sum."""
    axes = resolve_axes(axis, x.ndim)
    folded = fold_sum(x, axes=axes)
    if not keepdims:
        return folded
    return folded.reshape(*(1 if axis in axes else size for axis, size in enumerate(x.shape)))


def sum_to(x: Tensor, shape: Shape) -> Tensor:
    """Sum over the dimensions that broadcasting from `shape` has repeated.

    Raises:
        ValueError: `shape` does not broadcast to that of `x`.
    """
    if x.shape == shape:
        return x
    new = x.ndim - len(shape)
    if new < 0 or any(size not in (1, x.shape[new + axis]) for axis, size in enumerate(shape)):
        raise ValueError(f"cannot sum a tensor of shape {x.shape} to {shape}")
    repeated = (axis for axis, size in enumerate(shape, start=new) if size == 1 != x.shape[axis])
    return fold_sum(x, axes=(*range(new), *repeated)).reshape(*shape)


def _softmax_gradient(g: Tensor, out: Tensor, axis: int) -> Tensor:
    return out * (g - reduce_sum(g * out, axis, keepdims=True))


def _softmax(x: Array, *, axis: int) -> Array:
    powers = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return np.asarray(powers / np.sum(powers, axis=axis, keepdims=True))


scale_exponentials = Primitive("scale_exponentials", _softmax, floating=True, x=_softmax_gradient)


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """Give exponentials along `axis`, scaled to sum 1."""
    return scale_exponentials(x, axis=axis)


@primitive(a=lambda g, b: g @ b.swap_last(), b=lambda g, a: a.swap_last() @ g)
def matmul(a: Array, b: Array) -> Array:
    """The product of matrices; leading dimensions broadcast.

    Raises:
        ValueError: an operand has fewer than two dimensions, or the inner dimensions differ.
    """
    if min(a.ndim, b.ndim) < 2 or a.shape[-1] != b.shape[-2]:
        raise ValueError(f"cannot multiply matrices of shape {a.shape} and {b.shape}")
    return np.asarray(np.matmul(a, b))
