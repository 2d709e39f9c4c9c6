"""Operations that rearrange: views over the same storage, and joining."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorstash.reference.autograd.graph import Meta
from tensorstash.reference.autograd.primitive import primitive, view_primitive
from tensorstash.reference.dispatch import composite, register
from tensorstash.reference.ops.elementwise import contiguous
from tensorstash.reference.storage.dtypes import Array
from tensorstash.reference.storage.layout import Layout, Shape, resolve_axes, resolve_shape
from tensorstash.reference.tensor import Tensor


def _inverse(axes: Sequence[int]) -> list[int]:
    return [list(axes).index(axis) for axis in range(len(axes))]


def _permute_back(g: Tensor, axes: Sequence[int]) -> Tensor:
    return permute_axes(g, axes=_inverse(axes))


@view_primitive(x=_permute_back)
def permute_axes(x: Layout, *, axes: Sequence[int]) -> Layout:
    """The same elements with the dimensions in another order."""
    return x.permute(axes)


@view_primitive(x=lambda g, x_meta: g.sum_to(x_meta.shape))
def expand_to(x: Layout, *, shape: Shape) -> Layout:
    """The same elements, repeated with stride 0."""
    return x.expand(shape)


@view_primitive(x=lambda g, x_meta: g.reshape(*x_meta.shape))
def view_as(x: Layout, *, shape: Shape) -> Layout:
    """The same elements under another shape.

    Raises:
        ValueError: only a copy could have that shape.
    """
    layout = x.reshape(shape)
    if layout is None:
        raise ValueError(f"no view of {x.shape} with strides {x.strides} has shape {shape}; use reshape")
    return layout


def _restride_back(g: Tensor, source: Layout, target: Layout) -> Tensor:
    return gather_layout_transposed(g, source=source, target=target)


def _restride(g: Tensor, source: Layout, target: Layout) -> Tensor:
    return gather_layout(g, source=source, target=target)


@view_primitive(x=_restride_back)
def restride(x: Layout, *, source: Layout, target: Layout) -> Layout:
    """Another layout over the storage."""
    return target


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


@composite
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


@composite
def as_layout(x: Tensor, layout: Layout) -> Tensor:
    """Give `layout` over the storage of `x`."""
    return restride(x, source=x.layout, target=layout)


def _outside_region(g: Tensor, region: Layout, whole: Layout) -> Tensor:
    return blank_region(g, region=region, whole=whole)


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


@primitive(moves=True, x=_outside_region)
def blank_region(x: Array, *, region: Layout, whole: Layout) -> Array:
    """`x`, lying at `whole`, after zeros were written to `region` of its storage."""
    whole_at, region_at, size = _shared(whole, region)
    block = np.zeros(size, x.dtype)
    block[whole_at] = x
    block[region_at] = 0
    return np.asarray(block[whole_at])


@composite
def with_region(x: Tensor, value: Tensor, region: Layout) -> Tensor:
    """Give what `x` becomes when `value` is written through a view at `region`."""
    return replace_region(x, value, region=region, whole=x.layout)


@composite
def permute(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Give a view with its dimensions in another order."""
    order = resolve_axes(tuple(axes), x.ndim)
    if len(order) != x.ndim:
        raise ValueError(f"permute of {x.ndim} dimensions needs each once, got {tuple(axes)}")
    return permute_axes(x, axes=order)


@composite
def transpose(x: Tensor, first: int, second: int) -> Tensor:
    """Give a view with two dimensions exchanged."""
    (one,), (two,) = resolve_axes(first, x.ndim), resolve_axes(second, x.ndim)
    order = list(range(x.ndim))
    order[one], order[two] = two, one
    return permute_axes(x, axes=order)


@composite
def expand(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Give a view that repeats dimensions of size 1 with stride 0; -1 keeps a size."""
    return expand_to(x, shape=tuple(shape))


@composite
def view(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Give a view of another shape.

    Raises:
        ValueError: only a copy could have that shape.
    """
    return view_as(x, shape=resolve_shape(shape, x.numel))


@composite
def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Give a view of another shape where strides allow it, else a copy."""
    resolved = resolve_shape(shape, x.numel)
    return view_as(x if x.layout.reshape(resolved) else contiguous(x), shape=resolved)


@composite
def squeeze(x: Tensor, axis: int) -> Tensor:
    """Give a view without a dimension of size 1."""
    (at,) = resolve_axes(axis, x.ndim)
    if x.shape[at] != 1:
        raise ValueError(f"cannot squeeze dimension {axis} of {x.shape}: its size is not 1")
    return view_as(x, shape=x.shape[:at] + x.shape[at + 1 :])


@composite
def unsqueeze(x: Tensor, axis: int) -> Tensor:
    """Give a view with a new dimension of size 1."""
    (at,) = resolve_axes(axis, x.ndim + 1)
    return view_as(x, shape=(*x.shape[:at], 1, *x.shape[at:]))


def _part(g: Tensor, i: int, xs_meta: Sequence[Meta], axis: int) -> Tensor:
    start = sum(meta.shape[axis] for meta in xs_meta[:i])
    return narrow(g, axis, start, xs_meta[i].shape[axis])


@primitive(moves=True, xs=_part)
def join(*xs: Array, axis: int) -> Array:
    """Arrays one after another along `axis`."""
    return np.concatenate(xs, axis=axis)


@composite
def concat(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Give tensors joined along a dimension."""
    (at,) = resolve_axes(axis, tensors[0].ndim)
    return join(*tensors, axis=at)


@composite
def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Give tensors joined along a new dimension."""
    return concat([unsqueeze(x, axis) for x in tensors], axis)


def narrow(x: Tensor, axis: int, start: int, length: int) -> Tensor:
    """Give a view of `length` entries of a dimension."""
    return x[(slice(None),) * axis + (slice(start, start + length),)]


@composite
def split(x: Tensor, size: int, axis: int = 0) -> tuple[Tensor, ...]:
    """Give views of `size` along a dimension; the last may be smaller."""
    (at,) = resolve_axes(axis, x.ndim)
    return tuple(narrow(x, at, start, size) for start in range(0, x.shape[at], size))


register("narrow", narrow)
