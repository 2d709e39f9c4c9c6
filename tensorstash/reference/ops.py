"""The operations: a NumPy kernel beside the formulas of its derivative, or a function composed of such."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np

from tensorstash.reference.autograd.primitive import Primitive, ViewPrimitive, primitive
from tensorstash.reference.storage.dtypes import Array, DTypeLike, as_dtype
from tensorstash.reference.storage.layout import Layout, Shape
from tensorstash.reference.tensor import Tensor

BasicKey: TypeAlias = "tuple[int | slice | EllipsisType | None, ...]"

_GELU_SCALE = math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715


def _gelu_gradient(g: Tensor, x: Tensor) -> Tensor:
    t = tanh((x + x * x * x * _GELU_CUBIC) * _GELU_SCALE)
    inner = (x * x * (3 * _GELU_CUBIC) + 1) * _GELU_SCALE
    return g * ((t + 1) * 0.5 + x * (1 - t * t) * inner * 0.5)


def _gelu(x: Array) -> Array:
    # The tanh form of Hendrycks and Gimpel, arXiv:1606.08415.
    return np.asarray(0.5 * x * (1 + np.tanh(_GELU_SCALE * (x + _GELU_CUBIC * x * x * x))))


add = Primitive("add", lambda a, b: np.add(a, b), a=lambda g: g, b=lambda g: g)
sub = Primitive("sub", lambda a, b: np.subtract(a, b), a=lambda g: g, b=lambda g: g * -1)
mul = Primitive("mul", lambda a, b: np.multiply(a, b), a=lambda g, b: g * b, b=lambda g, a: g * a)
exp = Primitive("exp", lambda x: np.exp(x), x=lambda g, out: g * out)
tanh = Primitive("tanh", lambda x: np.tanh(x), x=lambda g, out: g * (1 - out * out))
relu = Primitive("relu", lambda x: np.maximum(x, 0), x=lambda g, out: g * (out > 0).astype(g.dtype))
gelu = Primitive("gelu", _gelu, x=_gelu_gradient)
gt = Primitive("gt", lambda a, b: np.greater(a, b))
clone = Primitive("clone", lambda x: x, moves=True, x=lambda g: g)
pack_contiguous = Primitive("pack_contiguous", lambda x: np.ascontiguousarray(x), moves=True, x=lambda g: g)


@primitive(x=lambda g, x_meta: astype(g, x_meta.dtype))
def cast(x: Array, *, dtype: DTypeLike) -> Array:
    """The same value in another element type."""
    return x


@primitive(moves=True, x=lambda g, x_meta: to(g, x_meta.device))
def copy_to(x: Array, *, device: str) -> Array:
    """A copy on another device that keeps a dense permuted layout."""
    return x


def astype(x: Tensor, dtype: DTypeLike) -> Tensor:
    """Give the tensor in another element type, itself where it has it already."""
    kind = as_dtype(dtype)
    return x if x.dtype is kind else cast(x, dtype=kind)


def to(x: Tensor, device: str) -> Tensor:
    """Give the tensor on a device, itself where it is there already."""
    return x if x.device == device else copy_to(x, device=device)


def contiguous(x: Tensor) -> Tensor:
    """Give the tensor dense and row-major, itself where it is."""
    return x if x.layout.is_contiguous else pack_contiguous(x)


@primitive(x=lambda g, key: take_view(g, key=key))
def place(x: Array, *, key: BasicKey, shape: Shape) -> Array:
    """Zeros of `shape` with `x` at `key`."""
    whole = np.zeros(shape, x.dtype)
    whole[key] = x
    return whole


take_view: ViewPrimitive = ViewPrimitive(
    "take_view",
    lambda x, *, key: x.viewed(lambda array: array[(*key, ...)]),
    x=lambda g, key, x_meta: place(g, key=key, shape=x_meta.shape),
)


@primitive(x=lambda g, index: gather(g, index))
def scatter_add(x: Array, index: Array, *, shape: Shape) -> Array:
    """Zeros of `shape`, to which each row of `x` is added at its index."""
    whole = np.zeros(shape, x.dtype)
    np.add.at(whole, index, x)
    return whole


gather: Primitive = Primitive(
    "gather",
    lambda x, index: x[index],
    moves=True,
    x=lambda g, index, x_meta: scatter_add(g, index, shape=x_meta.shape),
)
"""A copy of the rows that an index tensor names."""


def getitem(x: Tensor, key: Any) -> Tensor:
    """Give a view for integers, slices and None; a copy of rows for an index tensor; refuse others."""
    if isinstance(key, Tensor):
        return gather(x, key)
    items = key if isinstance(key, tuple) else (key,)
    for item in items:
        if not (item is None or isinstance(item, int | slice)) or isinstance(item, bool):
            raise TypeError(f"an index must be integers, slices and None, or one tensor, got {item!r}")
    return take_view(x, key=items)


@primitive(x=lambda g, x_meta: g.expand(*x_meta.shape))
def sum_to(x: Array, *, shape: Shape) -> Array:
    """The sum over the dimensions that broadcasting from `shape` has repeated."""
    new = x.ndim - len(shape)
    repeated = (axis for axis, size in enumerate(shape, start=new) if size == 1 != x.shape[axis])
    return np.asarray(x.sum(axis=(*range(new), *repeated), keepdims=True).reshape(shape))


def _softmax_gradient(g: Tensor, out: Tensor, axis: int) -> Tensor:
    kept = list(out.shape)
    kept[axis] = 1
    return out * (g - sum_to(g * out, shape=tuple(kept)))


@primitive(x=_softmax_gradient)
def softmax(x: Array, *, axis: int) -> Array:
    """Exponentials along `axis`, scaled to sum 1."""
    powers = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return np.asarray(powers / np.sum(powers, axis=axis, keepdims=True))


@primitive(a=lambda g, b: g @ b.T, b=lambda g, a: a.T @ g)
def matmul(a: Array, b: Array) -> Array:
    """The product of matrices of two or more dimensions; leading ones broadcast."""
    return np.asarray(np.matmul(a, b))


swap_last: ViewPrimitive = ViewPrimitive(
    "swap_last", lambda x: x.viewed(lambda array: array.swapaxes(-1, -2)), x=lambda g: swap_last(g)
)
expand_to = ViewPrimitive(
    "expand_to",
    lambda x, *, shape: x.viewed(lambda array: np.broadcast_to(array, shape)),
    x=lambda g, x_meta: sum_to(g, shape=x_meta.shape),
)
view_as = ViewPrimitive(
    "view_as",
    lambda x, *, shape: Layout.contiguous(shape, x.itemsize, x.offset),
    x=lambda g, x_meta: g.reshape(*x_meta.shape),
)
"""Of a dense tensor."""


def _unknown(g: Tensor) -> Tensor:
    raise NotImplementedError("the gradient through any strides; use clone()")


restride = ViewPrimitive("restride", lambda x, *, target: target, x=_unknown)


def as_strided(x: Tensor, shape: Sequence[int], strides: Sequence[int], offset: int) -> Tensor:
    """Give any layout over the storage of `x`: strides in elements, and an absolute offset in bytes."""
    return restride(x, target=Layout(tuple(shape), tuple(strides), offset, x.layout.itemsize))


def expand(x: Tensor, *shape: int) -> Tensor:
    """Give a view that repeats dimensions of size 1 with stride 0."""
    return expand_to(x, shape=shape)


def reshape(x: Tensor, *shape: int) -> Tensor:
    """Give a view of another shape of a dense tensor, else a copy; one extent may be -1."""
    return view_as(contiguous(x), shape=np.broadcast_to(np.int8(0), x.numel).reshape(shape).shape)
