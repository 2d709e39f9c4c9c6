"""Rules for views, which are only ever a step on the way."""

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from tensorstash.backends.torch.recipes.rule import Rule, Settings, indices, made_shape, saved, signed


def _reshape(shape: tuple[int, ...], tensor: Tensor) -> Tensor:
    return tensor.reshape(shape)


def _expand(shape: tuple[int, ...], tensor: Tensor) -> Tensor:
    return tensor.expand(shape)


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _transpose(first: int, second: int, tensor: Tensor) -> Tensor:
    return tensor.transpose(first, second)


def _permute(dims: tuple[int, ...], tensor: Tensor) -> Tensor:
    return tensor.permute(dims)


def _unsqueeze(dim: int, tensor: Tensor) -> Tensor:
    return tensor.unsqueeze(dim)


def _select(dim: int, index: int, tensor: Tensor) -> Tensor:
    return tensor.select(dim, index)


def _slice(dim: int, start: int, end: int, step: int, tensor: Tensor) -> Tensor:
    size = tensor.shape[dim]
    first, last = (max(0, each + size) if each < 0 else min(each, size) for each in (start, end))
    return tensor.narrow(dim, first, max(last - first, 0))[
        (slice(None),) * (dim % tensor.dim()) + (slice(None, None, step),)
    ]


def _split(size: int, dim: int, output: int, tensor: Tensor) -> Tensor:
    return torch.split_with_sizes(tensor, _sizes(size, tensor.shape[dim]), dim)[output]


def _sizes(size: int, total: int) -> list[int]:
    return [min(size, total - start) for start in range(0, total, size)]


def _split_sizes(sizes: tuple[int, ...], dim: int, output: int, tensor: Tensor) -> Tensor:
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


VIEWS = (
    *(
        Rule("view", node, saved(""), _reshape, made_shape, is_view=True)
        for node in ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "SqueezeBackward0")
    ),
    Rule("view", "SqueezeBackward1", saved(""), _reshape, made_shape, is_view=True),
    Rule("view", "ExpandBackward0", saved(""), _expand, made_shape, is_view=True),
    Rule("view", "AliasBackward0", saved(""), _same, is_view=True),
    Rule("view", "TBackward0", saved(""), Tensor.t, is_view=True),
    Rule("view", "TransposeBackward0", saved(""), _transpose, indices("dim0", "dim1"), is_view=True),
    Rule("view", "PermuteBackward0", saved(""), _permute, indices("dims"), is_view=True),
    Rule("view", "UnsqueezeBackward0", saved(""), _unsqueeze, indices("dim"), is_view=True),
    Rule("view", "SelectBackward0", saved(""), _select, indices("dim", "index"), is_view=True),
    Rule("view", "SliceBackward0", saved(""), _slice, _slice_settings, is_view=True),
    Rule("view", "SplitBackward0", saved(""), _split, _with_output(indices("split_size", "dim")), None, is_view=True),
    Rule(
        "view",
        "SplitWithSizesBackward0",
        saved(""),
        _split_sizes,
        _with_output(indices("split_sizes", "dim")),
        None,
        is_view=True,
    ),
)
"""They are used whatever rules are asked for: what they return shares the memory of what they are given."""
