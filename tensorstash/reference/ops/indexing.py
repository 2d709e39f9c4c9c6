"""Indexing: views for integers and slices, copies for index tensors and masks."""

from __future__ import annotations

from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np

from tensorstash.reference.autograd.graph import Meta
from tensorstash.reference.autograd.primitive import ViewPrimitive, primitive
from tensorstash.reference.storage.dtypes import Array
from tensorstash.reference.storage.layout import BasicKey, Shape
from tensorstash.reference.tensor import Tensor

KeyTemplate: TypeAlias = "tuple[int | slice | EllipsisType | _Slot | None, ...]"


class _Slot:
    """Marks where an index tensor stands in a key."""


_SLOT = _Slot()


def _place_back(g: Tensor, key: BasicKey, x_meta: Meta) -> Tensor:
    return place(g, key=key, shape=x_meta.shape)


take_view = ViewPrimitive("take_view", lambda x, *, key: x.index(key), x=_place_back)


@primitive(x=lambda g, key: take_view(g, key=key))
def place(x: Array, *, key: BasicKey, shape: Shape) -> Array:
    """Zeros of `shape` with `x` at `key`."""
    whole = np.zeros(shape, x.dtype)
    whole[key] = x
    return whole


def _add_back(g: Tensor, indices: tuple[Tensor, ...], template: KeyTemplate, x_meta: Meta) -> Tensor:
    return scatter_add(g, *indices, template=template, shape=x_meta.shape)


@primitive(moves=True, x=_add_back)
def gather(x: Array, *indices: Array, template: KeyTemplate) -> Array:
    """A copy of the entries at a key that holds index tensors or masks."""
    return np.array(x[_fill(template, indices)])


@primitive(x=lambda g, indices, template: gather(g, *indices, template=template))
def scatter_add(x: Array, *indices: Array, template: KeyTemplate, shape: Shape) -> Array:
    """Zeros of `shape`, to which each entry of `x` is added at its index."""
    whole = np.zeros(shape, x.dtype)
    np.add.at(whole, _fill(template, indices), x)
    return whole


def getitem(x: Tensor, key: Any) -> Tensor:
    """Give a view for integers, slices, None and Ellipsis; a copy if the key holds index tensors or masks.

    Raises:
        TypeError: the key holds anything else.
    """
    items = key if isinstance(key, tuple) else (key,)
    for item in items:
        if not (item is None or item is Ellipsis or isinstance(item, int | slice | Tensor)) or isinstance(item, bool):
            raise TypeError(f"an index must be integers, slices, None, Ellipsis or tensors, got {item!r}")
    indices = [item for item in items if isinstance(item, Tensor)]
    template: Any = tuple(_SLOT if isinstance(item, Tensor) else item for item in items)
    return gather(x, *indices, template=template) if indices else take_view(x, key=template)


def _fill(template: KeyTemplate, indices: tuple[Array, ...]) -> tuple[Any, ...]:
    remaining = iter(indices)
    return tuple(next(remaining) if isinstance(item, _Slot) else item for item in template)
