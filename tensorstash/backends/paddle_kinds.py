"""Which saved tensors must stay as they are, and why."""

from typing import Any

from paddle import Tensor

from tensorstash.backends.paddle_layout import DTYPE_NAMES

_ACCUMULATION = "GradNodeAccumulation"
_VIEWS = frozenset(
    f"{name}GradNode"
    for name in (
        "AsStrided",
        "Diagonal",
        "Flatten",
        "IndexSelectStrided",
        "Reshape",
        "Slice",
        "Split",
        "SplitWithNum",
        "Squeeze",
        "StridedSlice",
        "TensorUnfold",
        "Transpose",
        "Unbind",
        "Unsqueeze",
        "ViewDtype",
        "ViewShape",
    )
)
"""Operations whose output shares memory with their input, under ``FLAGS_use_stride_kernel`` (the default)."""


def keep_reason(tensor: Tensor) -> str | None:
    """Say why a tensor is kept, or return None for one that can be stashed.

    A parameter comes as a plain tensor without its class and attributes, but leaf and ``persistable``. Integer and
    boolean tensors may claim to need gradients.
    """
    if tensor.is_leaf:
        if tensor.persistable:
            return "parameter"
        if not tensor.stop_gradient:
            return "leaf that requires grad"
    elif _is_view_of_leaf(tensor.grad_fn):
        return "view of a leaf that requires grad"
    if tensor.is_dist():
        return "distributed"
    if not tensor.is_dense():
        return "sparse layout"
    if not tensor._is_initialized():
        return "no real memory"
    if tensor.dtype not in DTYPE_NAMES:
        return "dtype"
    return None


def _is_view_of_leaf(node: Any) -> bool:
    # Views remember nothing of their base but the chain of view operations that leads to the leaf's own node.
    while node is not None and node.name() in _VIEWS:
        (node,) = node.next_functions or (None,)
        if node is not None and node.name() == _ACCUMULATION:
            return True
    return False
