"""The operations become methods of the tensor, as PyTorch attaches its functions after import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorstash.reference import ops
from tensorstash.reference.autograd.engine import backward
from tensorstash.reference.autograd.graph import is_grad_enabled
from tensorstash.reference.errors import InplaceError
from tensorstash.reference.storage.layout import repeats
from tensorstash.reference.tensor import Tensor


def update(target: Tensor, operation: Callable[..., Tensor], *operands: Any) -> Tensor:
    """Compute `operation(target, *operands)` and write it into the memory of `target`.

    The new value is computed and recorded out of place on a private copy, so the operation may save any tensor.
    Bumps the version that all tensors over the storage share.

    Raises:
        InplaceError: `target` is a leaf that requires grad, or a view, while gradients are recorded; or it is expanded.
        ValueError: the result has another shape or type than `target`.
    """
    recorded = is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in (target, *operands))
    if recorded and (target._is_view or (target.is_leaf and target.requires_grad)):
        kind = "a view" if target._is_view else "a leaf tensor that requires grad"
        raise InplaceError(
            f"{kind} is being used in an in-place operation while gradients are recorded; do it under no_grad() to "
            "change the memory alone, or work on a clone()"
        )
    if repeats(target.shape, target.strides):
        raise InplaceError("several elements of an expanded tensor are in a single memory location; clone() it first")
    value = operation(ops.clone(target) if recorded else target, *operands)
    if value.meta != target.meta:
        raise ValueError(f"in-place {operation.__name__}: the result, {value.meta}, does not fit into {target.meta}")
    target.storage.write(target.layout, target.dtype, value.carriers())
    target.storage.counter[0] += 1
    if recorded:
        target._node = value.node
    return target


_METHODS: dict[str, Any] = {
    **{name: getattr(ops, name) for name in ("exp", "tanh", "relu", "clone", "contiguous", "astype", "to")},
    **{name: getattr(ops, name) for name in ("sum_to", "expand", "reshape", "as_strided")},
    "__add__": ops.add,
    "__radd__": ops.add,
    "__sub__": ops.sub,
    "__rsub__": lambda self, other: ops.sub(other, self),
    "__mul__": ops.mul,
    "__rmul__": ops.mul,
    "__gt__": ops.gt,
    "__bool__": lambda self: bool(self.item()),
    "__matmul__": ops.matmul,
    "__getitem__": ops.getitem,
    "add_": lambda self, other: update(self, ops.add, other),
    "mul_": lambda self, other: update(self, ops.mul, other),
    "softmax": lambda self, axis: ops.softmax(self, axis=axis),
    "sum": lambda self: ops.sum_to(self, shape=()),
    "T": property(lambda self: ops.swap_last(self)),
    "backward": backward,
}

for _name, _method in _METHODS.items():
    setattr(Tensor, _name, _method)
