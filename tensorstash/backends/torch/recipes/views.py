"""Rules for views, which are only ever a step on the way."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from tensorstash.backends.torch.recipes.rule import Rule, Settings, indices, made_shape, no_settings, saved, signed


def _slice(dim: int, start: int, end: int, step: int, tensor: Tensor) -> Tensor:
    size = tensor.shape[dim]
    first, last = (max(0, each + size) if each < 0 else min(each, size) for each in (start, end))
    return tensor.narrow(dim, first, max(last - first, 0))[
        (slice(None),) * (dim % tensor.dim()) + (slice(None, None, step),)
    ]


def _split(size: int, dim: int, output: int, tensor: Tensor) -> Tensor:
    total = tensor.shape[dim]
    return _split_sizes([min(size, total - start) for start in range(0, total, size)], dim, output, tensor)


def _split_sizes(sizes: Sequence[int], dim: int, output: int, tensor: Tensor) -> Tensor:
    return torch.split_with_sizes(tensor, sizes, dim)[output]


def _with_output(read: Settings) -> Settings:
    def settings(node: Any, output: int) -> tuple[Hashable, ...] | None:
        values = read(node, output)
        return None if values is None else (*values, output)

    return settings


def _slice_settings(node: Any, output: int) -> tuple[Hashable, ...]:
    # A bound that was left out is shown as None or as the largest number there is.
    start, end = node._saved_start, node._saved_end
    last = 2**63 - 1
    return (
        signed(node._saved_dim),
        0 if start is None else signed(start),
        last if end is None else signed(end),
        node._saved_step,
    )


def _view(node: str, run: Callable[..., Tensor], settings: Settings = no_settings, output: int | None = 0) -> Rule:
    return Rule("view", node, saved(""), run, settings, output, is_view=True)


_RESHAPED = "View UnsafeView ReshapeAlias Squeeze"

VIEWS = (
    *(_view(f"{name}Backward0", lambda shape, x: x.reshape(shape), made_shape) for name in _RESHAPED.split()),
    _view("SqueezeBackward1", lambda shape, x: x.reshape(shape), made_shape),
    _view("ExpandBackward0", lambda shape, x: x.expand(shape), made_shape),
    _view("AliasBackward0", lambda x: x),
    _view("TBackward0", Tensor.t),
    _view("TransposeBackward0", lambda one, other, x: x.transpose(one, other), indices("dim0", "dim1")),
    _view("PermuteBackward0", lambda dims, x: x.permute(dims), indices("dims")),
    _view("UnsqueezeBackward0", lambda dim, x: x.unsqueeze(dim), indices("dim")),
    _view("SelectBackward0", lambda dim, index, x: x.select(dim, index), indices("dim", "index")),
    _view("SliceBackward0", _slice, _slice_settings),
    _view("SplitBackward0", _split, _with_output(indices("split_size", "dim")), None),
    _view("SplitWithSizesBackward0", _split_sizes, _with_output(indices("split_sizes", "dim")), None),
)
"""They are used whatever rules are asked for: their results share the memory of their operands."""
