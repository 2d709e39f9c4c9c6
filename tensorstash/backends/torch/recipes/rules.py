"""The rules to run operations again, by the nodes of PyTorch's graph."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

Settings = Callable[[Any], tuple[Hashable, ...] | None]
"""From a node to the settings that the operation ran with; None where the node does not tell them."""


class Input(NamedTuple):
    """One operand of an operation: the name under which the node saves it, if it does, and whether it may be None.

    Functions in Python save several tensors under ``"tensors"``: ``place`` says which.
    """

    saved: str = ""
    optional: bool = False
    place: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """The rule to run one operation again, if a node of the graph shows its operands.

    Args:
        name: in :class:`~tensorstash.policies.recompute.Recompute`.
        node: the name of the node.
        inputs: the operands, in the order of the node's edges.
        run: takes the settings, then the operands, and returns the first output in fresh memory.
        settings: read from the node; equal settings have to mean the same operation.
        is_view: whether ``run`` returns a view of its first operand, which costs nothing.
    """

    name: str
    node: str
    inputs: tuple[Input, ...]
    run: Callable[..., Tensor]
    settings: Settings = lambda node: ()
    is_view: bool = False


def saved(*names: str) -> tuple[Input, ...]:
    """Return operands that the node may have saved under these names; none under an empty one."""
    return tuple(map(Input, names))


def attributes(*names: str) -> Settings:
    """Return a function that reads settings that the node has under these names."""
    return lambda node: tuple(_signed(getattr(node, f"_saved_{name}")) for name in names)


def _signed(value: Any) -> Any:
    """Return a setting with the sign that nodes leave out of dimensions: -1 is told as 2**64 - 1."""
    return value - 2**64 if type(value) is int and value >= 2**63 else value


CAST = Rule(
    "cast", "ToCopyBackward0", saved(""), lambda dtype, x: x.to(dtype), lambda node: (node._input_metadata[0].dtype,)
)

_EPSILONS = (1e-5, 1e-12, 1e-6, 1e-8, 1e-7, 1e-3, 1e-4, 1e-10)  # the usual values, the most usual first


def _layer_norm(found: dict[Hashable, float], shape: tuple[int, ...], layer: Hashable, *operands: Any) -> Tensor:
    """Normalize again; ``found`` has the eps of each layer of one session.

    The graph does not tell eps, but the statistics do: once, when the layer's kind is proved, and never by a later
    result. That would wait for a device each time, and statistics that are NaN tell nothing.
    """
    x, weight, bias, mean, rstd = operands
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


def _layer_settings(node: Any) -> tuple[Hashable, ...]:
    """Return the normalized dimensions, and the place of the weight, which tells one layer from another."""
    # Not its address: trainers that shard weights gather them in fresh memory, under the same storage object.
    weight = node._raw_saved_weight.data
    tensor = weight[1] if type(weight) is tuple else getattr(weight, "tensor", None)
    place = None if tensor is None else (tensor.untyped_storage()._cdata, tensor.storage_offset())
    return node._saved_normalized_shape, place


_DENSE = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)


def _batch_norm(
    eps: float, x: Tensor, weight: Tensor | None, bias: Tensor | None, own_mean: Tensor, own_factor: Tensor
) -> Tensor:
    # The kernel for tensors with gaps or permuted dimensions rounds between the two factors, and the product of two in
    # 16 bits is rounded once more.
    may_multiply = weight is None or (
        own_factor.itemsize > 2
        and any(x.is_contiguous(memory_format=each) for each in _DENSE)
        and all(each is None or each.is_contiguous() for each in (weight, bias))
    )
    if not (x.is_cpu and may_multiply):
        # With statistics of its own, those that are learned are neither read nor written.
        return torch.native_batch_norm(x, weight, bias, None, None, True, 0.0, eps)[0]
    # The same kernel, given the statistics that were saved: a factor of 1 / sqrt(1 + 0) changes no bit.
    factor = own_factor if weight is None else own_factor * weight
    return torch.native_batch_norm(x, factor, bias, own_mean, torch.ones_like(own_factor), False, 0.0, 0.0)[0]


def _batch_settings(node: Any) -> tuple[Hashable, ...] | None:
    """Return eps, or None in evaluation and where the node saves the weight and no bias, as it is not trained."""
    has_weight = node._raw_saved_weight.data is not None
    is_known = node._saved_training and not (has_weight and node.next_functions[2][0] is None)
    return (node._saved_eps,) if is_known else None


def _made_shape(node: Any) -> tuple[Hashable, ...]:
    return (tuple(node._input_metadata[0].shape),)


def _view(node: str, run: Callable[..., Tensor], settings: Settings = lambda node: ()) -> Rule:
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
        # Views are only ever a step on the way, and used whatever rules are asked for: their results share memory.
        *(_view(node, lambda shape, x: x.reshape(shape), _made_shape) for node in _RESHAPED.split()),
        _view("AliasBackward0", lambda x: x),
        _view("TransposeBackward0", lambda one, other, x: x.transpose(one, other), attributes("dim0", "dim1")),
    )
    return {rule.node: rule for rule in made}
