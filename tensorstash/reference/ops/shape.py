"""Operations that rearrange: views over the same storage, and joining."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorstash.reference.autograd.graph import Meta
from tensorstash.reference.autograd.primitive import Primitive, ViewPrimitive
from tensorstash.reference.ops.elementwise import contiguous
from tensorstash.reference.storage.layout import Layout, Shape, resolve_axes, resolve_shape
from tensorstash.reference.tensor import Tensor


def _permute_back(g: Tensor, axes: Sequence[int]) -> Tensor:
    return permute_axes(g, axes=[list(axes).index(axis) for axis in range(len(axes))])


def _view_as(x: Layout, *, shape: Shape) -> Layout:
    layout = x.reshape(shape)
    assert layout is not None, "a tensor that is not dense is copied first"
    return layout


permute_axes = ViewPrimitive("permute_axes", lambda x, *, axes: x.permute(axes), x=_permute_back)
expand_to = ViewPrimitive("expand_to", lambda x, *, shape: x.expand(shape), x=lambda g, x_meta: g.sum_to(x_meta.shape))
view_as = ViewPrimitive("view_as", _view_as, x=lambda g, x_meta: g.reshape(*x_meta.shape))


def _unknown(g: Tensor) -> Tensor:
    raise NotImplementedError("the gradient through any strides, or through a write into a view; use clone()")


restride = ViewPrimitive("restride", lambda x, *, target: target, x=_unknown)
replace_region = Primitive("replace_region", lambda x, value: x, moves=True, x=_unknown, value=_unknown)
"""A tensor after something was written into a view of it."""


def as_layout(x: Tensor, layout: Layout) -> Tensor:
    """Give `layout` over the storage of `x`."""
    return restride(x, target=layout)


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
    return as_layout(x, Layout(tuple(shape), tuple(strides), start, x.layout.itemsize))


def transpose(x: Tensor, first: int, second: int) -> Tensor:
    """Give a view with two dimensions exchanged."""
    (one,), (two,) = resolve_axes(first, x.ndim), resolve_axes(second, x.ndim)
    order = list(range(x.ndim))
    order[one], order[two] = two, one
    return permute_axes(x, axes=order)


def swap_last(x: Tensor) -> Tensor:
    """Give a view with the last two dimensions exchanged."""
    return transpose(x, -2, -1)


def expand(x: Tensor, *shape: int) -> Tensor:
    """Give a view that repeats dimensions of size 1 with stride 0; -1 keeps a size."""
    return expand_to(x, shape=shape)


def reshape(x: Tensor, *shape: int) -> Tensor:
    """Give a view of another shape of a dense tensor, else a copy."""
    resolved = resolve_shape(shape, x.numel)
    return view_as(x if x.layout.reshape(resolved) else contiguous(x), shape=resolved)


def _narrow(x: Tensor, axis: int, start: int, length: int) -> Tensor:
    return x[(slice(None),) * axis + (slice(start, start + length),)]


def _part(g: Tensor, i: int, xs_meta: Sequence[Meta], axis: int) -> Tensor:
    return _narrow(g, axis, sum(meta.shape[axis] for meta in xs_meta[:i]), xs_meta[i].shape[axis])


join = Primitive("join", lambda *xs, axis: np.concatenate(xs, axis=axis), moves=True, xs=_part)


def concat(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Give tensors joined along a dimension."""
    (at,) = resolve_axes(axis, tensors[0].ndim)
    return join(*tensors, axis=at)


def split(x: Tensor, size: int, axis: int = 0) -> tuple[Tensor, ...]:
    """Give views of `size` along a dimension; the last may be smaller."""
    (at,) = resolve_axes(axis, x.ndim)
    return tuple(_narrow(x, at, start, size) for start in range(0, x.shape[at], size))
