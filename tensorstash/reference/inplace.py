"""In-place writes: the value goes into shared memory, the history into the tensor that owns it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorstash.reference.autograd.graph import is_grad_enabled
from tensorstash.reference.autograd.primitive import primitive
from tensorstash.reference.creation import full
from tensorstash.reference.errors import InplaceError
from tensorstash.reference.ops import replace_region
from tensorstash.reference.storage.dtypes import Array, can_store
from tensorstash.reference.tensor import Tensor


@primitive(moves=True, target=lambda g: full(g.shape, 0, g.dtype, g.device), source=lambda g: g)
def overwrite(target: Array, source: Array) -> Array:
    """Give `source` in the shape of `target`."""
    return np.array(np.broadcast_to(source, target.shape))


def update(target: Tensor, operation: Callable[..., Tensor], *operands: Any) -> Tensor:
    """Compute `operation(target, *operands)` and write it into the memory of `target`.

    The new value is computed and recorded out of place on a private copy, so the operation may save any tensor.
    Through a tracked view the write becomes part of the history of the viewed tensor, and other views of it follow
    when next used. Bumps the version that all tensors over the storage share.

    Raises:
        InplaceError: `target` is a leaf that requires grad or a view of one, a view made without recording, or has
            elements that share memory; while nothing is recorded only the last.
        ValueError: the result has another shape than `target`, or a type that `target` cannot store.
    """
    if target.layout.may_overlap:
        raise InplaceError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory "
            "location; clone() it first"
        )
    involved = (target, *operands)
    recorded = is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in involved)
    if recorded:
        _refuse_untracked(target)
    value = operation(target.clone() if recorded else target, *operands)
    name = operation.__name__
    if value.shape != target.shape:
        raise ValueError(
            f"in-place {operation.__name__}: result of shape {value.shape} does not fit into {target.shape}"
        )
    if not can_store(value.dtype, target.dtype):
        raise ValueError(f"in-place {name}: result type {value.dtype} cannot be stored as {target.dtype}")
    value = value.astype(target.dtype)
    root = target._root
    history = value if root is None or not recorded else replace_region(root, value)
    target.storage.write(target.layout, target.dtype, value.carriers())
    target.storage.counter[0] += 1
    if recorded:
        (target if root is None else root).set_history(history.node)
    return target


def copy_(target: Tensor, source: Any) -> Tensor:
    """Overwrite `target` with a tensor or number, broadcast and cast; the old value gets no gradient."""
    if isinstance(source, Tensor):
        source = source.to(target.device).astype(target.dtype)
    else:
        source = full((), source, target.dtype, target.device)
    return update(target, overwrite, source)


def _refuse_untracked(target: Tensor) -> None:
    root = target if target._root is None else target._root
    if root._untracked_view:
        raise InplaceError(
            "a view created without recording (under no_grad, or by a PyLayer that returned its input or a view of "
            "it) is being modified in place while gradients are recorded; clone() it first, or make the view while "
            "recording"
        )
    if root.is_leaf and root.requires_grad:
        kind = "a leaf" if root is target else "a view of a leaf"
        raise InplaceError(
            f"{kind} tensor that requires grad is being used in an in-place operation; do it under no_grad() to "
            "change the leaf itself, or work on a clone()"
        )
