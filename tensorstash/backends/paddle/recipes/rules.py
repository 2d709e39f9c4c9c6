"""The rules to run operations again, by the nodes of Paddle's graph."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import paddle
from paddle import Tensor
from paddle.nn import functional as F  # noqa: N812


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """The rule to run one operation of Paddle again.

    Args:
        name: in :class:`~tensorstash.policies.recompute.Recompute`.
        node: the name of the node that the operation leaves in the graph.
        operands: number of the node's edges; what is behind each has to be known.
        run: takes the settings by position, then the operands, and returns one output in fresh memory.
        has_settings: whether the operation has settings, which :mod:`tensorstash.backends.paddle.operations` notes.
        mask: whether the last operand is a mask that the operation itself has made and saved.
    """

    name: str
    node: str
    operands: int
    run: Callable[..., Tensor]
    has_settings: bool = False
    mask: bool = False
    is_view: ClassVar[bool] = False


_operators: Any = paddle._C_ops  # its stubs say otherwise than it is


def _batch_norm(
    is_test: bool,
    momentum: float,
    eps: float,
    layout: str,
    uses_learned: bool,
    trains: bool,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
) -> Tensor:
    if uses_learned or (is_test and not trains):
        raise ValueError("made with the running statistics, which the graph does not tell")
    # Statistics to be updated that are nobody's.
    mean, variance = paddle.zeros_like(weight), paddle.zeros_like(weight)
    made: Tensor = _operators.batch_norm(x, mean, variance, weight, bias, False, momentum, eps, layout, False, trains)[
        0
    ]
    return made


def _dropout(p: float, is_test: bool, mode: str, seed: int, is_seeded: bool, x: Tensor, mask: Tensor) -> Tensor:
    if is_test or mode != "upscale_in_train":
        raise ValueError("of a mode that scales in evaluation")
    kept = _operators.full([], float(np.float32(1) - np.float32(p)), x.dtype, x.place)
    return paddle.where(mask.astype("bool"), x / kept, _operators.full([], 0.0, x.dtype, x.place))


_RULES = (
    Rule("mul", "MultiplyGradNode", 2, paddle.multiply),
    Rule("add", "AddGradNode", 2, paddle.add),
    Rule("relu", "ReluGradNode", 1, F.relu),
    Rule("silu", "SiluGradNode", 1, F.silu),
    Rule("glu", "SwigluGradNode", 2, _operators.swiglu),
    Rule("gelu", "GeluGradNode", 1, lambda *given: F.gelu(given[-1], *given[:-1]), has_settings=True),
    Rule(
        "layer_norm",
        "LayerNormGradNode",
        3,
        lambda eps, axis, x, weight, bias: F.layer_norm(x, x.shape[axis:], weight, bias, eps),
        has_settings=True,
    ),
    Rule("batch_norm", "BatchNormGradNode", 3, _batch_norm, has_settings=True),
    Rule("dropout", "DropoutGradNode", 1, _dropout, has_settings=True, mask=True),
)

RULES: Mapping[str, Rule] = MappingProxyType({rule.node: rule for rule in _RULES})
"""By the name of the node. Without a row:

a product with a number, whose node does not keep the addend; a power, whose node keeps whole numbers otherwise;
a cast and a view, whose nodes show neither type nor shape; normalization in evaluation, whose statistics the graph does
not tell.
"""


def _nodes(names: str) -> frozenset[str]:
    return frozenset(f"{name}GradNode" for name in names.split())


READERS = _nodes(
    """
    Abs Add AddN Bmm BatchNorm Cast Ceil Concat Conv2d Conv2dTranspose Conv3d Cos DepthwiseConv2d Divide Dropout Elu Erf
    Exp Expand Flatten Floor Gelu GroupNorm Hardsigmoid Hardswish InstanceNorm LayerNorm LeakyRelu Log LogSoftmax Matmul
    Max Maximum Mean Min Minimum Mish Multiply Pool2d Pow Relu Relu6 Reshape Rsqrt Scale Sigmoid Silu Sin Slice Softmax
    Softplus Split SplitWithNum Sqrt Square Squeeze Stack Subtract Sum Swiglu Swish Tanh Transpose Unbind Unsqueeze
    Where
    """
)
"""Nodes with edges to whatever made the floating-point tensors that they have saved. The tests try each."""

_WITH_SEVERAL_OUTPUTS = _nodes("Split SplitWithNum Unbind")

OUTPUTS = (READERS | frozenset(RULES)) - _WITH_SEVERAL_OUTPUTS
"""Nodes whose edges all stand for their first output."""
