"""Operations that fold dimensions; `axis` is one axis, several, or None for all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from tensorstash.reference.autograd.graph import Meta
from tensorstash.reference.autograd.primitive import primitive
from tensorstash.reference.dispatch import register
from tensorstash.reference.storage.dtypes import Array
from tensorstash.reference.storage.layout import Shape, resolve_axes
from tensorstash.reference.tensor import Tensor

Axis: TypeAlias = "int | Sequence[int] | None"


def _spread(g: Tensor, meta: Meta, axes: Shape) -> Tensor:
    """Repeat a reduced tensor over the axes it was reduced along."""
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(meta.shape))
    return g.reshape(*kept).expand(*meta.shape)


@primitive(x=lambda g, x_meta, axes: _spread(g, x_meta, axes))
def fold_sum(x: Array, *, axes: Shape) -> Array:
    """The sum over `axes`."""
    return np.asarray(np.sum(x, axis=axes))


def _max_gradient(g: Tensor, x: Tensor, out: Tensor, x_meta: Meta, axes: Shape) -> Tensor:
    winners = x.eq(_spread(out.detach(), x_meta, axes)).astype(g.dtype)
    share = winners / _spread(fold_sum(winners, axes=axes), x_meta, axes)
    return _spread(g, x_meta, axes) * share


@primitive(x=_max_gradient)
def fold_max(x: Array, *, axes: Shape) -> Array:
    """The largest; elements that share the maximum share the gradient."""
    return np.asarray(np.max(x, axis=axes))


def _log_sum_exp_gradient(g: Tensor, x: Tensor, out: Tensor, x_meta: Meta, axes: Shape) -> Tensor:
    return _spread(g, x_meta, axes) * (x - _spread(out, x_meta, axes)).exp()


@primitive(floating=True, x=_log_sum_exp_gradient)
def fold_logsumexp(x: Array, *, axes: Shape) -> Array:
    """The logarithm of the summed exponentials over `axes`."""
    top = np.max(x, axis=axes, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    return np.asarray(np.log(np.sum(np.exp(x - top), axis=axes)) + np.squeeze(top, axes))


@primitive()
def find_max(x: Array, *, axis: int) -> Array:
    """The position of the largest along `axis`."""
    return np.asarray(np.argmax(x, axis=axis))


def reduce_sum(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Give the sum."""
    axes = resolve_axes(axis, x.ndim)
    return _keep(fold_sum(x, axes=axes), x, axes, keepdims)


def reduce_mean(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Give the mean."""
    axes = resolve_axes(axis, x.ndim)
    return reduce_sum(x, axes, keepdims) / math.prod(x.shape[axis] for axis in axes)


def reduce_max(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Give the largest; elements that share the maximum share the gradient."""
    axes = resolve_axes(axis, x.ndim)
    return _keep(fold_max(x, axes=axes), x, axes, keepdims)


def logsumexp(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Give the logarithm of the summed exponentials, without overflow."""
    axes = resolve_axes(axis, x.ndim)
    return _keep(fold_logsumexp(x, axes=axes), x, axes, keepdims)


def argmax(x: Tensor, axis: int = -1) -> Tensor:
    """Give the position of the largest, as int64; has no gradient."""
    return find_max(x, axis=axis)


def variance(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Give the mean squared distance from the mean."""
    centred = x - reduce_mean(x, axis, keepdims=True)
    return reduce_mean(centred * centred, axis, keepdims)


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


def _keep(folded: Tensor, x: Tensor, axes: Shape, keepdims: bool) -> Tensor:
    if not keepdims:
        return folded
    return folded.reshape(*(1 if axis in axes else size for axis, size in enumerate(x.shape)))


register("sum", reduce_sum)
register("mean", reduce_mean)
register("max", reduce_max)
register("sum_to", sum_to)
