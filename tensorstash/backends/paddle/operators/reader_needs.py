"""The accuracy that the backward of each of Paddle's operators needs of a saved tensor.

Derived: one saved tensor of an operator at a time goes through ``Quantize(8)`` and through ``Cast("bfloat16")``, which
err by about a 250th; a gradient that errs by more than a tenth, in norm, has come to harm. The tests derive it again on
whatever version of Paddle they run.
"""

from collections.abc import Mapping
from types import MappingProxyType

from tensorstash.protocols import Demand

_EXACT = """
    Acos Acosh Amax Amin Asin Atanh BceLoss Dist Fmax Fmin GroupNorm Log1p LogLoss Logit Max Maximum Maxout Median Min
    Minimum Nanmedian PNorm Pool2d Pool3d PutAlongAxis Remainder SegmentPool SendURecv SendUeRecv Softshrink
    SpectralNorm Svdvals
"""
"""Their backward compares the saved tensor; neither loss may reach it."""

_RELATIVE = """
    Abs BatchNorm CrossEntropyWithSoftmax DeformableConv Digamma Divide ElementwisePow Gammaincc Gammaln I1 I1e
    InstanceNorm LayerNorm Lgamma Log10 Log2 Log Polygamma Pow Sqrt
"""
"""Their backward divides by the saved tensor; only a loss in proportion to each element may reach it."""

_ANY = """
    Addmm AffineGrid Angle AsStrided Asinh Atan2 Atan Baddbmm Bilinear Bmm Celu Cholesky CholeskySolve Clip Complex
    Conv2d Conv2dTranspose Conv3d Conv3dTranspose Copysign Cos Cosh Crop Cross Cummax Cummin Cumprod Cumsum
    DepthwiseConv2d DepthwiseConv2dTranspose Det Dot Eigh Eigvalsh Einsum Elu Erf Erfinv Exp Expm1 FractionalMaxPool2d
    FractionalMaxPool3d Frame FrobeniusNorm FusedSoftmaxMask Gelu GridSample GumbelSoftmax Hardshrink Hardsigmoid
    Hardswish Hardtanh Heaviside HsigmoidLoss HuberLoss I0 I0e IdentityLoss Inverse KldivLoss Kron Kthvalue LeakyRelu
    Lerp LogSoftmax Logcumsumexp Logsigmoid Logsumexp LpPool2d Lu LuSolve LuUnpack Matmul MatrixPower MaxPool2dWithIndex
    MaxPool3dWithIndex Meshgrid Mish Mode MultiDot Multiplex Multiply Mv NllLoss OverlapAdd Prelu Prod PsroiPool Qr
    Reciprocal ReduceAs Relu6 Relu Renorm RepeatInterleave RepeatInterleaveWithTensorIndex Rnn RoiAlign RoiPool Rrelu
    Rsqrt Selu SendUv SetValueWithTensor SigmoidCrossEntropyWithLogits Sigmoid Silu Sin Sinh Slogdet Softmax Softplus
    Softsign Solve Square Stanh Svd Swiglu Swish TakeAlongAxis Tan Tanh TanhShrink ThresholdedRelu Topk TriangularSolve
    Unpool3d Unpool Warpctc Warprnnt
"""
"""Both losses may reach these."""


def _needs(names: str, need: Demand) -> dict[str, Demand]:
    return {f"{name}GradNode": need for name in names.split()}


NEEDS: Mapping[str, Demand] = MappingProxyType(
    {**_needs(_EXACT, "exact"), **_needs(_RELATIVE, "relative"), **_needs(_ANY, "any")}
)
"""By the name of the graph node; others have not been tried."""

INPUT_NEEDS: Mapping[str, Demand] = MappingProxyType(_needs("BatchNorm InstanceNorm LayerNorm", "any"))
"""The demand of norms on their inputs, which is less than that on their statistics."""
