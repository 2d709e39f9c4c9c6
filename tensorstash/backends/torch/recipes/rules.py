"""The rules that are built in, by the nodes of PyTorch's graph."""

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from tensorstash.backends.torch.recipes.rule import (
    Input,
    Rule,
    Settings,
    attributes,
    made_dtype,
    made_shape,
    no_settings,
    saved,
)

CAST = Rule("cast", "ToCopyBackward0", saved(""), lambda dtype, x: x.to(dtype), made_dtype)

_EPSILONS = (1e-5, 1e-12, 1e-6, 1e-8, 1e-7, 1e-3, 1e-4, 1e-10)
"""The usual values, the most usual first."""


def _layer_norm(
    found: dict[Hashable, float],
    shape: tuple[int, ...],
    layer: Hashable,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
) -> Tensor:
    """Normalize again.

    The graph does not tell eps, but the statistics do: once, when the layer's kind is proved, and never by a later
    result. That would wait for a device each time, and statistics that are NaN tell nothing.

    Args:
        found: eps of each layer of one session; told that of a new one.
        shape: normalized dimensions.
        layer: names the layer, with its shape.
        x: of it.
        weight: of it.
        bias: of it.
        mean: as it was saved.
        rstd: as it was saved.
    """
    run = partial(torch.native_layer_norm, x, shape, weight, bias)
    if (shape, layer) not in found:
        if not bool(rstd.isfinite().all()):
            raise ValueError("its statistics are not finite, and do not tell its eps")
        for eps in _EPSILONS:
            _, again, factor = run(eps)
            if torch.equal(factor, rstd) and torch.equal(again, mean):
                found[shape, layer] = eps
                break
        else:
            raise ValueError(f"none of the usual values of eps makes the statistics that were saved: {_EPSILONS}")
    return run(found[shape, layer])[0]


def _layer_settings(node: Any, output: int) -> tuple[Hashable, ...]:
    """Return the normalized dimensions, and the place of the weight, which tells one layer from another.

    Not the address: trainers that shard weights gather them in fresh memory, under the same storage object.
    """
    weight = node._raw_saved_weight.data
    tensor = weight[1] if type(weight) is tuple else getattr(weight, "tensor", None)
    place = None if tensor is None else (tensor.untyped_storage()._cdata, tensor.storage_offset())
    return node._saved_normalized_shape, place


def _batch_norm(
    eps: float, x: Tensor, weight: Tensor | None, bias: Tensor | None, own_mean: Tensor, own_factor: Tensor
) -> Tensor:
    if not x.is_cpu:
        # With statistics of its own, those that are learned are neither read nor written.
        return torch.native_batch_norm(x, weight, bias, None, None, True, 0.0, eps)[0]
    # The same kernel, given the statistics that were saved: a factor of 1 / sqrt(1 + 0) changes no bit.
    factor = own_factor if weight is None else own_factor * weight
    return torch.native_batch_norm(x, factor, bias, own_mean, torch.ones_like(own_factor), False, 0.0, 0.0)[0]


def _batch_settings(node: Any, output: int) -> tuple[Hashable, ...] | None:
    """Return eps, or None in evaluation and where the node saves the weight and no bias, as it is not trained."""
    has_weight = node._raw_saved_weight.data is not None
    is_known = node._saved_training and not (has_weight and node.next_functions[2][0] is None)
    return (node._saved_eps,) if is_known else None


def _view(node: str, run: Callable[..., Tensor], settings: Settings = no_settings) -> Rule:
    return Rule("view", node, saved(""), run, settings, is_view=True)


_RESHAPED = "ViewBackward0 UnsafeViewBackward0 ReshapeAliasBackward0 SqueezeBackward0 SqueezeBackward1"


def rules() -> dict[str, Rule]:
    """Return the rules of one session, by the name of the node that the operation leaves in the graph."""
    made = (
        Rule("mul", "MulBackward0", saved("self", "other"), torch.mul),
        Rule("add", "AddBackward0", saved("", ""), lambda a, x, y: torch.add(x, y, alpha=a), attributes("alpha")),
        CAST,
        Rule("clone", "CloneBackward0", saved(""), lambda x: x.clone(memory_format=torch.contiguous_format)),
        Rule("gelu", "GeluBackward0", saved("self"), lambda a, x: F.gelu(x, approximate=a), attributes("approximate")),
        Rule("silu", "SiluBackward0", saved("self"), F.silu),
        Rule("relu", "ReluBackward0", saved(""), F.relu),
        Rule(
            "layer_norm",
            "NativeLayerNormBackward0",
            (Input("input"), Input("weight", True), Input("bias", True), Input("result1"), Input("result2")),
            partial(_layer_norm, {}),
            _layer_settings,
        ),
        Rule(
            "batch_norm",
            "NativeBatchNormBackward0",
            (Input("input"), Input("weight", True), Input("", True), Input("result1"), Input("result2")),
            _batch_norm,
            _batch_settings,
        ),
        Rule(
            "dropout",
            "NativeDropoutBackward0",
            saved("", "result1"),
            lambda p, x, mask: x * mask * (1 / (1 - p)),
            attributes("p"),
        ),
        Rule("embedding", "EmbeddingBackward0", saved("", "indices"), lambda weight, rows: F.embedding(rows, weight)),
        # Views are only ever a step on the way, and used whatever rules are asked for: their results share memory.
        *(_view(node, lambda shape, x: x.reshape(shape), made_shape) for node in _RESHAPED.split()),
        _view("AliasBackward0", lambda x: x),
        _view("TransposeBackward0", lambda one, other, x: x.transpose(one, other), attributes("dim0", "dim1")),
    )
    return {rule.node: rule for rule in made}
