"""The rules that are built in, by the nodes of Paddle's graph."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import paddle
from paddle import Tensor
from paddle.nn import functional as F  # noqa: N812

from tensorstash.backends.paddle.recipes.attributes import FLAGS, Attribute
from tensorstash.backends.paddle.recipes.rule import Rule

_NUMBERS = (0.3125, 0.117, 1.71, 0.9)
_SMALL_NUMBERS = (1e-5, 3e-6, 1e-12, 1e-3)
_LENGTHS = tuple(18 if flag else 16 for flag in FLAGS)

_operators: Any = paddle._C_ops  # its stubs say otherwise than it is


def _cast(dtype: Any, x: Tensor) -> Tensor:
    return paddle.cast(x, dtype)


def _reshape(shape: tuple[int, ...], x: Tensor) -> Tensor:
    return paddle.reshape(x, list(shape))


def _gelu(approximate: bool, x: Tensor) -> Tensor:
    return F.gelu(x, approximate)


def _leaky_relu(slope: float, x: Tensor) -> Tensor:
    return F.leaky_relu(x, slope)


def _elu(alpha: float, x: Tensor) -> Tensor:
    return F.elu(x, alpha)


def _softplus(beta: float, threshold: float, x: Tensor) -> Tensor:
    return F.softplus(x, beta, threshold)


def _hardsigmoid(slope: float, offset: float, x: Tensor) -> Tensor:
    return F.hardsigmoid(x, slope, offset)


def _layer_norm(eps: float, axis: int, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[axis:], weight, bias, eps)


def _layer_norm_of(x: Tensor, *, eps: float = 1e-5, axis: int = 3) -> Tensor:
    return F.layer_norm(x, x.shape[axis:], epsilon=eps)


def _batch_norm(
    eps: float,
    layout: bytes,
    is_test: bool,
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
    made: Tensor = _operators.batch_norm(
        x, mean, variance, weight, bias, False, 0.9, eps, layout.decode(), False, trains
    )[0]
    return made


def _batch_norm_of(
    x: Tensor,
    *,
    eps: float = 1e-5,
    layout: bytes = b"NCHW",
    is_test: bool = False,
    uses_learned: bool = False,
    trains: bool = False,
) -> Tensor:
    channels = [3 if layout == b"NCHW" else 5]
    learned = [_operators.full(channels, 1.0, paddle.float32, paddle.CPUPlace()) for _ in range(4)]
    made: Tensor = _operators.batch_norm(x, *learned, is_test, 0.9, eps, layout.decode(), uses_learned, trains)[0]
    return made


_LAYER_NORM = "LayerNormGradNode"
_BATCH_NORM = "BatchNormGradNode"
_DROPOUT = "DropoutGradNode"

_SCALED_UP = 16
"""The length of ``"upscale_in_train"``."""


def _dropout(p: float, length: int, x: Tensor, mask: Tensor) -> Tensor:
    if length != _SCALED_UP:
        raise ValueError("of a mode that scales in evaluation")
    kept = _operators.full([], float(np.float32(1) - np.float32(p)), x.dtype, x.place)
    return paddle.where(mask.astype("bool"), x / kept, _operators.full([], 0.0, x.dtype, x.place))


def _dropout_of(x: Tensor, *, p: float = 0.5, length: int = _SCALED_UP) -> Tensor:
    mode = "upscale_in_train" if length == _SCALED_UP else "downscale_in_infer"
    # With a seed of its own, or the user's random numbers were drawn.
    made: Tensor = _operators.dropout(x, None, p, False, mode, 1, True)
    return made


_NORMALIZED_FROM = Attribute(_LAYER_NORM, "i", (1, 3, 2, 3, 1), lambda x, axis: _layer_norm_of(x, axis=axis))

_RULES = (
    Rule("mul", "MultiplyGradNode", ("type", "type"), paddle.multiply),
    Rule("add", "AddGradNode", ("type", "type"), paddle.add),
    Rule("sub", "SubtractGradNode", ("type", "type"), paddle.subtract),
    Rule("div", "DivideGradNode", ("type", "type"), paddle.divide),
    Rule("rsqrt", "RsqrtGradNode", ("same",), paddle.rsqrt),
    Rule("cast", "CastGradNode", ("free",), _cast, is_cast=True),
    Rule("clone", "AssignGradNode", ("same",), paddle.assign),
    Rule("relu", "ReluGradNode", ("same",), F.relu),
    Rule("tanh", "TanhGradNode", ("same",), paddle.tanh),
    Rule("sigmoid", "SigmoidGradNode", ("same",), F.sigmoid),
    Rule("silu", "SiluGradNode", ("same",), F.silu),
    Rule("silu", "SwishGradNode", ("same",), F.swish),
    Rule("hardswish", "HardswishGradNode", ("same",), F.hardswish),
    Rule("glu", "SwigluGradNode", ("same", "same"), _operators.swiglu),
    Rule("gelu", "GeluGradNode", ("same",), _gelu, (Attribute("GeluGradNode", "?", FLAGS, F.gelu),)),
    Rule(
        "leaky_relu",
        "LeakyReluGradNode",
        ("same",),
        _leaky_relu,
        (Attribute("LeakyReluGradNode", "d", _NUMBERS, F.leaky_relu),),
    ),
    Rule("elu", "EluGradNode", ("same",), _elu, (Attribute("EluGradNode", "f", _NUMBERS, F.elu),)),
    Rule(
        "softplus",
        "SoftplusGradNode",
        ("same",),
        _softplus,
        (
            Attribute("SoftplusGradNode", "d", _NUMBERS, lambda x, beta: F.softplus(x, beta=beta)),
            Attribute("SoftplusGradNode", "d", _NUMBERS, lambda x, threshold: F.softplus(x, threshold=threshold)),
        ),
    ),
    Rule(
        "hardsigmoid",
        "HardsigmoidGradNode",
        ("same",),
        _hardsigmoid,
        (
            Attribute("HardsigmoidGradNode", "f", _NUMBERS, lambda x, slope: F.hardsigmoid(x, slope=slope)),
            Attribute("HardsigmoidGradNode", "f", _NUMBERS, lambda x, offset: F.hardsigmoid(x, offset=offset)),
        ),
    ),
    Rule(
        "layer_norm",
        _LAYER_NORM,
        ("free", "free", "free"),
        _layer_norm,
        (
            Attribute(_LAYER_NORM, "f", _SMALL_NUMBERS, lambda x, eps: _layer_norm_of(x, eps=eps)),
            _NORMALIZED_FROM,
        ),
    ),
    Rule(
        "batch_norm",
        _BATCH_NORM,
        ("free", "free", "free"),
        _batch_norm,
        (
            Attribute(_BATCH_NORM, "f", _SMALL_NUMBERS, lambda x, eps: _batch_norm_of(x, eps=eps)),
            Attribute(
                _BATCH_NORM,
                "4s",
                (b"NCHW", b"NHWC", b"NHWC", b"NCHW", b"NHWC"),
                lambda x, layout: _batch_norm_of(x, layout=layout),
            ),
            Attribute(_BATCH_NORM, "?", FLAGS, lambda x, flag: _batch_norm_of(x, is_test=flag)),
            Attribute(_BATCH_NORM, "?", FLAGS, lambda x, flag: _batch_norm_of(x, uses_learned=flag)),
            Attribute(_BATCH_NORM, "?", FLAGS, lambda x, flag: _batch_norm_of(x, trains=flag)),
        ),
    ),
    Rule(
        "dropout",
        _DROPOUT,
        ("same",),
        _dropout,
        (
            Attribute(_DROPOUT, "d", (*_NUMBERS[:2], 0.71, 0.9), lambda x, p: _dropout_of(x, p=p)),
            Attribute(_DROPOUT, "q", _LENGTHS, lambda x, length: _dropout_of(x, length=length)),
        ),
        mask=True,
    ),
    *(
        Rule("view", node, ("type",), _reshape, is_view=True)
        for node in ("ReshapeGradNode", "FlattenGradNode", "SqueezeGradNode", "UnsqueezeGradNode")
    ),
)

RULES: Mapping[str, Rule] = MappingProxyType({rule.node: rule for rule in _RULES})
"""By the name of the node. What has no row here:

a product with a number, whose node does not keep what was added; a power, whose node keeps whole numbers otherwise;
normalization in evaluation, whose statistics the graph does not tell.
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


def _has_axes(more_than: int) -> Callable[[Any, Tensor], bool]:
    return lambda node, tensor: len(tensor.shape) > more_than


def _has_normalized_axes(node: Any, tensor: Tensor) -> bool:
    axis = _NORMALIZED_FROM.read(node)
    return isinstance(axis, int) and len(tensor.shape) > axis


def _is_no_mask(node: Any, tensor: Tensor) -> bool:
    return tensor.dtype != paddle.uint8


FIRST_OF_SEVERAL: Mapping[str, Callable[[Any, Tensor], bool]] = MappingProxyType(
    {
        _LAYER_NORM: _has_normalized_axes,
        _BATCH_NORM: _has_axes(1),
        "InstanceNormGradNode": _has_axes(1),
        "GroupNormGradNode": _has_axes(2),
        _DROPOUT: _is_no_mask,
    }
)
"""Nodes with outputs that nobody but their own backward gets, such as statistics, and whether a tensor is the other
one."""
