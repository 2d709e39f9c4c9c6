"""Indexing: views for integers and slices, copies of the rows that an index tensor names."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorstash.reference.autograd.graph import Meta
from tensorstash.reference.autograd.primitive import ViewPrimitive, primitive
from tensorstash.reference.storage.dtypes import Array
from tensorstash.reference.storage.layout import BasicKey, Shape
from tensorstash.reference.tensor import Tensor


def _place_back(g: Tensor, key: BasicKey, x_meta: Meta) -> Tensor:
    return place(g, key=key, shape=x_meta.shape)


take_view = ViewPrimitive("take_view", lambda x, *, key: x.index(key), x=_place_back)


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
    """Give a view for integers, slices, None and Ellipsis; a copy of rows for an index tensor.

    Raises:
        TypeError: the key holds anything else.
    """
    if isinstance(key, Tensor):
        return gather(x, key)
    items = key if isinstance(key, tuple) else (key,)
    for item in items:
        if not (item is None or item is Ellipsis or isinstance(item, int | slice)) or isinstance(item, bool):
            raise TypeError(f"an index must be integers, slices, None and Ellipsis, or one tensor, got {item!r}")
    return take_view(x, key=items)
