"""Operations that rearrange: views over the same storage, and joining."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorstash.reference.autograd.graph import Meta
from tensorstash.reference.autograd.primitive import Primitive, ViewPrimitive, primitive
from tensorstash.reference.ops.elementwise import contiguous
from tensorstash.reference.storage.dtypes import Array
from tensorstash.reference.storage.layout import Layout, Shape, resolve_axes, resolve_shape
from tensorstash.reference.tensor import Tensor


def _permute_back(g: Tensor, axes: Sequence[int]) -> Tensor:
    return permute_axes(g, axes=[list(axes).index(axis) for axis in range(len(axes))])


def _view_as(x: Layout, *, shape: Shape) -> Layout:
    layout = x.reshape(shape)
    if layout is None:
        raise ValueError(f"no view of {x.shape} with strides {x.strides} has shape {shape}; use reshape")
    return layout


permute_axes = ViewPrimitive("permute_axes", lambda x, *, axes: x.permute(axes), x=_permute_back)
expand_to = ViewPrimitive("expand_to", lambda x, *, shape: x.expand(shape), x=lambda g, x_meta: g.sum_to(x_meta.shape))
view_as = ViewPrimitive("view_as", _view_as, x=lambda g, x_meta: g.reshape(*x_meta.shape))


def _restride_back(g: Tensor, source: Layout, target: Layout) -> Tensor:
    return gather_layout_transposed(g, source=source, target=target)


def _restride(g: Tensor, source: Layout, target: Layout) -> Tensor:
    return gather_layout(g, source=source, target=target)


restride = ViewPrimitive("restride", lambda x, *, source, target: target, x=_restride_back)


def _positions(layout: Layout, start: int) -> Array:
    """Give the element position in the storage of each index of `layout`, counted from byte `start`."""
    first = np.array((layout.offset - start) // layout.itemsize)
    for size, stride in zip(layout.shape, layout.strides, strict=True):
        first = first[..., None] + np.arange(size) * stride
    return first


def _shared(source: Layout, target: Layout) -> tuple[Array, Array, int]:
    """Give the positions of both layouts in one block of elements, and the size of that block."""
    start = min(source.begin, target.begin)
    if (source.offset - target.offset) % source.itemsize:
        raise ValueError(f"no gradient between views {source.offset} and {target.offset}: not whole elements apart")
    size = (max(source.end, target.end) - start) // source.itemsize
    return _positions(source, start), _positions(target, start), size


@primitive(x=_restride)
def gather_layout_transposed(x: Array, *, source: Layout, target: Layout) -> Array:
    """From the gradient of `target` to that of `source`, two layouts over one storage.

    Where indices of `source` share an element they share its gradient, as in PyTorch's ``as_strided_backward``.
    """
    source_at, target_at, size = _shared(source, target)
    block = np.zeros(size, x.dtype)
    np.add.at(block, target_at, x)
    return np.asarray(block[source_at] / np.bincount(source_at.ravel(), minlength=size)[source_at]).astype(x.dtype)


@primitive(x=_restride_back)
def gather_layout(x: Array, *, source: Layout, target: Layout) -> Array:
    """Read elements given under `source` through `target`: the transpose of `gather_layout_transposed`."""
    source_at, target_at, size = _shared(source, target)
    block = np.zeros(size, x.dtype)
    np.add.at(block, source_at, x)
    count = np.maximum(np.bincount(source_at.ravel(), minlength=size), 1)
    return np.asarray((block / count).astype(x.dtype)[target_at])


def as_layout(x: Tensor, layout: Layout) -> Tensor:
    """Give `layout` over the storage of `x`."""
    return restride(x, source=x.layout, target=layout)


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


def _outside_region(g: Tensor, region: Layout, whole: Layout) -> Tensor:
    return replace_region(g, 0, region=region, whole=whole)


def _inside_region(g: Tensor, region: Layout, whole: Layout) -> Tensor:
    return gather_layout(g, source=whole, target=region)


@primitive(moves=True, x=_outside_region, value=_inside_region)
def replace_region(x: Array, value: Array, *, region: Layout, whole: Layout) -> Array:
    """`x`, lying at `whole`, after `value` was written to `region` of its storage."""
    whole_at, region_at, size = _shared(whole, region)
    block = np.zeros(size, x.dtype)
    block[whole_at] = x
    block[region_at] = value
    return np.asarray(block[whole_at])


def permute(x: Tensor, *axes: int) -> Tensor:
    """Give a view with its dimensions in another order."""
    order = resolve_axes(axes, x.ndim)
    if len(order) != x.ndim:
        raise ValueError(f"permute of {x.ndim} dimensions needs each once, got {axes}")
    return permute_axes(x, axes=order)


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


def view(x: Tensor, *shape: int) -> Tensor:
    """Give a view of another shape.

    Raises:
        ValueError: only a copy could have that shape.
    """
    return view_as(x, shape=resolve_shape(shape, x.numel))


def reshape(x: Tensor, *shape: int) -> Tensor:
    """Give a view of another shape where strides allow it, else a copy."""
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
