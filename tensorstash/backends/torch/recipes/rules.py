"""The rules that are built in, by the nodes of PyTorch's graph."""

from collections.abc import Callable, Hashable, Sequence
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
    indices,
    made_dtype,
    made_shape,
    no_settings,
    saved,
    signed,
)

CAST = Rule("cast", "ToCopyBackward0", saved(""), lambda dtype, x: x.to(dtype), made_dtype)

ARITHMETIC = (
    Rule("mul", "MulBackward0", saved("self", "other"), torch.mul),
    Rule("div", "DivBackward0", saved("self", "other"), torch.div),
    Rule("add", "AddBackward0", saved("", ""), lambda alpha, x, y: torch.add(x, y, alpha=alpha), attributes("alpha")),
    Rule("sub", "SubBackward0", saved("", ""), lambda alpha, x, y: torch.sub(x, y, alpha=alpha), attributes("alpha")),
    Rule("neg", "NegBackward0", saved(""), torch.neg),
    Rule("pow", "PowBackward0", saved("self"), lambda n, x: torch.pow(x, n), attributes("exponent"), weight=4),
    Rule("rsqrt", "RsqrtBackward0", saved(""), torch.rsqrt),
    CAST,
    Rule("clone", "CloneBackward0", saved(""), lambda x: x.clone(memory_format=torch.contiguous_format)),
)

_EPSILONS = (1e-5, 1e-12, 1e-6, 1e-8, 1e-7, 1e-3, 1e-4, 1e-10)
"""The usual values, the most usual first."""


Found = dict[Hashable, float]
"""The value of eps of each layer of one session, by its normalized dimensions and the place of its weight.

It is found once, when the layer's kind is proved, and never by a later result: that would wait for a device each time,
and statistics that are NaN tell nothing."""


def _layer_norm(
    found: Found,
    shape: tuple[int, ...],
    layer: Hashable,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
) -> Tensor:
    def run(eps: float) -> tuple[Tensor, Tensor, Tensor]:
        return torch.native_layer_norm(x, shape, weight, bias, eps)

    return run(_eps(run, mean, rstd, found, (shape, layer)))[0]


def _eps(
    run: Callable[[float], tuple[Tensor, Tensor, Tensor]], mean: Tensor, rstd: Tensor, found: Found, layer: Hashable
) -> float:
    """Return the number that was added to the variance: the graph does not tell it, but the statistics do once.

    Args:
        run: normalizes with a value for eps; returns the result and the statistics.
        mean: as it was saved.
        rstd: as it was saved.
        found: of each layer; told the value of a new one.
        layer: names the layer.
    """
    if layer in found:
        return found[layer]
    if not bool(rstd.isfinite().all()):
        raise ValueError("its statistics are not finite, and do not tell its eps")
    for eps in _EPSILONS:
        _, again, factor = run(eps)
        if torch.equal(factor, rstd) and torch.equal(again, mean):
            found[layer] = eps
            return eps
    raise ValueError(f"none of the usual values of eps makes the statistics that were saved: {_EPSILONS}")


def _with_layer(read: Settings) -> Settings:
    """Return a function that reads settings, and the place of the weight, which tells one layer from another.

    Not the address: trainers that shard weights gather them in fresh memory, under the same storage object.
    """

    def settings(node: Any, output: int) -> tuple[Hashable, ...] | None:
        values, weight = read(node, output), node._raw_saved_weight.data
        tensor = weight[1] if type(weight) is tuple else getattr(weight, "tensor", None)
        place = None if tensor is None else (tensor.untyped_storage()._cdata, tensor.storage_offset())
        return None if values is None else (*values, place)

    return settings


def _batch_norm(
    eps: float,
    training: bool,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    own_mean: Tensor | None,
    own_factor: Tensor | None,
) -> Tensor:
    if not training:
        return torch.native_batch_norm(x, weight, bias, mean, variance, False, 0.0, eps)[0]
    if not x.is_cpu or own_mean is None or own_factor is None:
        # With statistics of its own, those that are learned are neither read nor written.
        return torch.native_batch_norm(x, weight, bias, None, None, True, 0.0, eps)[0]
    # The same kernel, given the statistics that were saved: a factor of 1 / sqrt(1 + 0) changes no bit.
    factor = own_factor if weight is None else own_factor * weight
    return torch.native_batch_norm(x, factor, bias, own_mean, torch.ones_like(own_factor), False, 0.0, 0.0)[0]


def _read_by_batch_norm(settings: tuple[Hashable, ...], place: int) -> bool:
    """Return whether an operand is read: in training not a learned one, which the next forward rewrites unseen."""
    _, training = settings
    return not training or place not in (3, 4)


def _biased(*names: str, **missing: Hashable) -> Any:
    """Return a function that reads settings of a node that saves the weight, and the bias only where it is trained."""
    read = attributes(*names, **missing)

    def settings(node: Any, output: int) -> tuple[Hashable, ...] | None:
        has_weight = node._raw_saved_weight.data is not None
        return None if has_weight and node.next_functions[2][0] is None else read(node, output)

    return settings


NEURAL = (
    Rule("gelu", "GeluBackward0", saved("self"), lambda how, x: F.gelu(x, approximate=how), attributes("approximate")),
    Rule("silu", "SiluBackward0", saved("self"), F.silu),
    Rule("relu", "ReluBackward0", saved(""), F.relu),
    Rule("tanh", "TanhBackward0", saved(""), torch.tanh, weight=4),
    Rule("sigmoid", "SigmoidBackward0", saved(""), torch.sigmoid),
    Rule(
        "batch_norm",
        "NativeBatchNormBackward0",
        (
            Input("input"),
            Input("weight", True),
            Input("", True),
            Input("running_mean", True),
            Input("running_var", True),
            Input("result1", True),
            Input("result2", True),
        ),
        _batch_norm,
        _biased("eps", "training"),
        reads=_read_by_batch_norm,
    ),
    Rule(
        "dropout",
        "NativeDropoutBackward0",
        saved("", "result1"),
        lambda p, x, mask: x * mask * (1 / (1 - p)),
        attributes("p"),
    ),
    Rule("embedding", "EmbeddingBackward0", saved("", "indices"), lambda weight, rows: F.embedding(rows, weight)),
)


def normalizations() -> tuple[Rule, ...]:
    """Return the rules of norms whose eps the graph does not show, for one session."""
    found: Found = {}
    return (
        Rule(
            "layer_norm",
            "NativeLayerNormBackward0",
            (Input("input"), Input("weight", True), Input("bias", True), Input("result1"), Input("result2")),
            partial(_layer_norm, found),
            _with_layer(attributes("normalized_shape")),
        ),
    )


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
"""They are only ever a step on the way, and used whatever rules are asked for: their results share the memory of their
operands."""


def rules() -> dict[str, Rule]:
    """Return the rules of one session, by the name of the node that the operation leaves in the graph."""
    return {rule.node: rule for rule in (*ARITHMETIC, *NEURAL, *normalizations(), *VIEWS)}
