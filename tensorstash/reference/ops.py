"""The operations: a NumPy kernel beside the formulas of its derivative, or a function composed of such."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from tensorstash.reference.autograd.graph import Meta
from tensorstash.reference.autograd.primitive import Operand, Primitive, ViewPrimitive, primitive
from tensorstash.reference.storage.dtypes import Array, DTypeLike, as_dtype
from tensorstash.reference.storage.layout import BasicKey, Layout, Shape, resolve_shape
from tensorstash.reference.storage.memory import dense_copy
from tensorstash.reference.tensor import Tensor

_GELU_SCALE = math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715


def _base_gradient(g: Tensor, base: Tensor, exponent: Operand) -> Tensor:
    if isinstance(exponent, Tensor):
        raise NotImplementedError("the gradient of a power whose exponent is a tensor; use a number")
    return g * 0 if exponent == 0 else g * (base ** (exponent - 1) * exponent)


def _exponent_gradient(g: Tensor) -> Tensor:
    raise NotImplementedError("the gradient of an exponent; use a number")


def _gelu_gradient(g: Tensor, x: Tensor) -> Tensor:
    t = tanh((x + x * x * x * _GELU_CUBIC) * _GELU_SCALE)
    inner = (x * x * (3 * _GELU_CUBIC) + 1) * _GELU_SCALE
    return g * ((t + 1) * 0.5 + x * (1 - t * t) * inner * 0.5)


def _gelu(x: Array) -> Array:
    # The tanh form of Hendrycks and Gimpel, arXiv:1606.08415.
    return np.asarray(0.5 * x * (1 + np.tanh(_GELU_SCALE * (x + _GELU_CUBIC * x * x * x))))


add = Primitive("add", lambda a, b: np.add(a, b), a=lambda g: g, b=lambda g: g)
sub = Primitive("sub", lambda a, b: np.subtract(a, b), a=lambda g: g, b=lambda g: -g)
mul = Primitive("mul", lambda a, b: np.multiply(a, b), a=lambda g, b: g * b, b=lambda g, a: g * a)
div = Primitive("div", lambda a, b: np.true_divide(a, b), a=lambda g, b: g / b, b=lambda g, a, b: -g * (a / (b * b)))
neg = Primitive("neg", lambda a: np.negative(a), a=lambda g: -g)
power = Primitive(
    "power", lambda base, exponent: np.power(base, exponent), base=_base_gradient, exponent=_exponent_gradient
)
exp = Primitive("exp", lambda x: np.exp(x), x=lambda g, out: g * out)
tanh = Primitive("tanh", lambda x: np.tanh(x), x=lambda g, out: g * (1 - out * out))
sigmoid = Primitive("sigmoid", lambda x: 1 / (1 + np.exp(-x)), x=lambda g, out: g * (out * (1 - out)))
relu = Primitive("relu", lambda x: np.maximum(x, 0), x=lambda g, out: g * (out > 0).astype(g.dtype))
gelu = Primitive("gelu", _gelu, x=_gelu_gradient)
gt = Primitive("gt", lambda a, b: np.greater(a, b))
clone = Primitive("clone", lambda x: dense_copy(x), moves=True, x=lambda g: g)
pack_contiguous = Primitive("pack_contiguous", lambda x: np.array(x, order="C"), moves=True, x=lambda g: g)


@primitive(x=lambda g, x_meta: astype(g, x_meta.dtype))
def cast(x: Array, *, dtype: DTypeLike) -> Array:
    """The same value in another element type."""
    return x


def _move_back(g: Tensor, x_meta: Meta) -> Tensor:
    return to(g, x_meta.device)


@primitive(moves=True, x=_move_back)
def copy_to(x: Array, *, device: str) -> Array:
    """A copy on another device that keeps a dense permuted layout."""
    return dense_copy(x)


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


def _place_back(g: Tensor, key: BasicKey, x_meta: Meta) -> Tensor:
    return place(g, key=key, shape=x_meta.shape)


take_view = ViewPrimitive("take_view", lambda x, *, key: x.viewed(lambda array: array[(*key, ...)]), x=_place_back)


@primitive(x=lambda g, key: take_view(g, key=key))
def place(x: Array, *, key: BasicKey, shape: Shape) -> Array:
    """Zeros of `shape` with `x` at `key`."""
    whole = np.zeros(shape, x.dtype)
    whole[key] = x
    return whole


def _add_back(g: Tensor, index: Tensor, x_meta: Meta) -> Tensor:
    return scatter_add(g, index, shape=x_meta.shape)


@primitive(moves=True, x=_add_back)
def gather(x: Array, index: Array) -> Array:
    """A copy of the rows of `x` that `index` names."""
    return np.array(x[index])


@primitive(x=lambda g, index: gather(g, index))
def scatter_add(x: Array, index: Array, *, shape: Shape) -> Array:
    """Zeros of `shape`, to which each row of `x` is added at its index."""
    whole = np.zeros(shape, x.dtype)
    np.add.at(whole, index, x)
    return whole


def getitem(x: Tensor, key: Any) -> Tensor:
    """Give a view for integers, slices and None; a copy of rows for an index tensor.

    Raises:
        TypeError: the key holds anything else.
    """
    if isinstance(key, Tensor):
        return gather(x, key)
    items = key if isinstance(key, tuple) else (key,)
    for item in items:
        if not (item is None or isinstance(item, int | slice)) or isinstance(item, bool):
            raise TypeError(f"an index must be integers, slices and None, or one tensor, got {item!r}")
    return take_view(x, key=items)


def _spread(g: Tensor, x_meta: Meta, axes: Shape) -> Tensor:
    """Repeat a reduced tensor over the axes it was reduced along."""
    kept = (1 if axis in axes else size for axis, size in enumerate(x_meta.shape))
    return g.reshape(*kept).expand(*x_meta.shape)


fold_sum = Primitive("fold_sum", lambda x, *, axes: np.sum(x, axis=axes), x=_spread)


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


def total(x: Tensor) -> Tensor:
    """Give the sum of all elements."""
    return fold_sum(x, axes=tuple(range(x.ndim)))


def _softmax_gradient(g: Tensor, out: Tensor, axis: int) -> Tensor:
    kept = list(out.shape)
    kept[axis] = 1
    return out * (g - sum_to(g * out, tuple(kept)))


def _softmax(x: Array, *, axis: int) -> Array:
    powers = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return np.asarray(powers / np.sum(powers, axis=axis, keepdims=True))


scale_exponentials = Primitive("scale_exponentials", _softmax, x=_softmax_gradient)


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


def _permute_back(g: Tensor, axes: Sequence[int]) -> Tensor:
    return permute_axes(g, axes=[list(axes).index(axis) for axis in range(len(axes))])


permute_axes = ViewPrimitive(
    "permute_axes", lambda x, *, axes: x.viewed(lambda array: array.transpose(axes)), x=_permute_back
)
expand_to = ViewPrimitive(
    "expand_to",
    lambda x, *, shape: x.viewed(lambda array: np.broadcast_to(array, shape)),
    x=lambda g, x_meta: g.sum_to(x_meta.shape),
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


def as_strided(x: Tensor, shape: Sequence[int], strides: Sequence[int], offset: int | None = None) -> Tensor:
    """Give any layout over the storage.

    Args:
        x: a tensor over the storage.
        shape: extents.
        strides: steps in elements; overlaps and negative ones are allowed.
        offset: absolute position of the first element in bytes, by default that of `x`.

    Raises:
        ValueError: the layout leaves the storage.
    """
    start = x.offset if offset is None else offset
    return restride(x, target=Layout(tuple(shape), tuple(strides), start, x.layout.itemsize))


def swap_last(x: Tensor) -> Tensor:
    """Give a view with the last two dimensions exchanged."""
    return permute_axes(x, axes=[*range(x.ndim - 2), x.ndim - 1, x.ndim - 2])


def expand(x: Tensor, *shape: int) -> Tensor:
    """Give a view that repeats dimensions of size 1 with stride 0."""
    return expand_to(x, shape=shape)


def reshape(x: Tensor, *shape: int) -> Tensor:
    """Give a view of another shape of a dense tensor, else a copy."""
    return view_as(contiguous(x), shape=resolve_shape(shape, x.numel))


def _narrow(x: Tensor, axis: int, start: int, length: int) -> Tensor:
    key = [slice(None)] * x.ndim
    key[axis] = slice(start, start + length)
    return x[tuple(key)]


def _first(g: Tensor, a_meta: Meta, axis: int) -> Tensor:
    return _narrow(g, axis, 0, a_meta.shape[axis])


def _second(g: Tensor, a_meta: Meta, axis: int) -> Tensor:
    return _narrow(g, axis, a_meta.shape[axis], g.shape[axis] - a_meta.shape[axis])


join = Primitive("join", lambda a, b, *, axis: np.concatenate((a, b), axis=axis), moves=True, a=_first, b=_second)


def concat(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Give tensors joined along a dimension."""
    first, *others = tensors
    return reduce(lambda a, b: join(a, b, axis=axis), others, first) if others else first.clone()


def split(x: Tensor, size: int, axis: int = 0) -> tuple[Tensor, ...]:
    """Give views of `size` along a dimension; the last may be smaller."""
    return tuple(_narrow(x, axis, start, size) for start in range(0, x.shape[axis], size))
