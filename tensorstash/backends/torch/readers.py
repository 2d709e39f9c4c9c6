"""What the operations of PyTorch do with what they have saved: which of them a lossy codec must not reach.

The list is measured, not written: ``tests/torch/reader_search.py`` hands each operation in PyTorch's operator database
one saved tensor at a time as a lossy codec brings it back, and compares the gradients. It runs again for every version
of PyTorch.
"""

from collections.abc import Callable, Mapping
from functools import cache
from math import isinf
from types import MappingProxyType
from typing import Any

from tensorstash.protocols import Demand

BOUND = 0.1
"""What the gradients of an operation whose readers take any tensor stay within, under ``Quantize(8)`` and
``Cast("bfloat16")``: relative to the root mean square of the gradient's elements. Half of them stay within 0.006,
nine of ten within 0.026."""


@cache
def demand(reader: str) -> Demand:
    """Return what a reader needs; those that are not listed, functions written in Python among them, take any tensor.

    Args:
        reader: an operation, its variant and the name of what it saved, such as ``"PowBackward0(exponent<1).self"``.

    >>> demand("AmaxBackward0.self"), demand("LogBackward0.self"), demand("MmBackward0.self")
    ('exact', 'relative', 'any')
    """
    return "exact" if reader in EXACT or reader in COMPILED else "relative" if reader in RELATIVE else "any"


def variant(node: Any) -> str:
    """Return the name of what a node of the graph does, with the setting that changes what it needs.

    >>> import torch
    >>> x = torch.ones(2, requires_grad=True)
    >>> variant((x**2).grad_fn), variant((x**0.5).grad_fn)
    ('PowBackward0', 'PowBackward0(exponent<1)')
    """
    name = type(node).__name__
    setting = _SETTINGS.get(name)
    if setting is None:
        return name
    attribute, change = setting
    return name + change(getattr(node, attribute))


def _exponent(value: Any) -> str:
    return "" if not isinstance(value, complex) and value >= 1 else "(exponent<1)"


def _order(value: Any) -> str:
    return "(inf)" if isinstance(value, (int, float)) and isinf(value) else ""


def _distance(value: Any) -> str:
    return "" if value == 2 else "(p!=2)"


_SETTINGS: Mapping[str, tuple[str, Callable[[Any], str]]] = MappingProxyType(
    {
        "PowBackward0": ("_saved_exponent", _exponent),
        "LinalgVectorNormBackward0": ("_saved_ord", _order),
        "CdistBackward0": ("_saved_p", _distance),
        "PdistBackward0": ("_saved_p", _distance),
        "DistBackward0": ("_saved_p", _distance),
        "NormBackward0": ("_saved_p", _order),
        "NormBackward1": ("_saved_p", _order),
        "NormBackward2": ("_saved_p", _order),
        "NormBackward3": ("_saved_p", _order),
    }
)

VARYING = frozenset(_SETTINGS)
"""Nodes of which one name does not say it all."""

COMPILED = frozenset(("CompiledFunctionBackward.tensors",))
"""What ``torch.compile`` has made of many operations, any of which may compare or divide."""

EXACT = frozenset(
    (
        "AmaxBackward0.result",
        "AmaxBackward0.self",
        "AminBackward0.result",
        "AminBackward0.self",
        "AminmaxBackward0.max",
        "AminmaxBackward0.min",
        "AminmaxBackward0.self",
        "AsinBackward0.self",
        "AtanhBackward0.self",
        "CdistBackward0(p!=2).result",
        "CdistBackward0(p!=2).x1",
        "CdistBackward0(p!=2).x2",
        "ClampBackward0.max",
        "ClampBackward0.min",
        "ClampBackward0.self",
        "ClampBackward1.self",
        "ClampMaxBackward0.self",
        "ClampMaxBackward1.max",
        "ClampMaxBackward1.self",
        "ClampMinBackward1.min",
        "ClampMinBackward1.self",
        "CtcLossBackward0.result0",
        "DigammaBackward0.self",
        "ErfinvBackward0.self",
        "FmaxBackward0.other",
        "FmaxBackward0.self",
        "FminBackward0.other",
        "FminBackward0.self",
        "FmodBackward1.self",
        "GridSampler2DBackward0.grid",
        "GridSampler2DBackwardBackward0.grid",
        "HardshrinkBackward0.self",
        "HardsigmoidBackward0.self",
        "HardswishBackward0.self",
        "HardswishBackwardBackward0.self",
        "HardtanhBackward0.self",
        "IndexReduceBackward0.result",
        "IndexReduceBackward0.self",
        "IndexReduceBackward0.source",
        "LgammaBackward0.self",
        "LinalgPinvBackward0.self",
        "LinalgVectorNormBackward0(inf).result",
        "LinalgVectorNormBackward0(inf).self",
        "Log1PBackward0.self",
        "Logaddexp2Backward0.other",
        "Logaddexp2Backward0.self",
        "LogaddexpBackward0.other",
        "LogaddexpBackward0.self",
        "LogcumsumexpBackward0.result",
        "LogcumsumexpBackward0.self",
        "LogsumexpBackward0.result",
        "LogsumexpBackward0.self",
        "MaxBackward1.result",
        "MaxBackward1.self",
        "MaximumBackward0.other",
        "MaximumBackward0.self",
        "MedianBackward0.result",
        "MedianBackward0.self",
        "MinBackward1.result",
        "MinBackward1.self",
        "MinimumBackward0.other",
        "MinimumBackward0.self",
        "NanmedianBackward0.result",
        "NanmedianBackward0.self",
        "NativeLayerNormBackward0.result1",
        "NextafterBackward0.other",
        "NextafterBackward0.self",
        "NormBackward0(inf).result",
        "NormBackward0(inf).self",
        "NormBackward1(inf).result",
        "NormBackward1(inf).self",
        "NormBackward2(inf).result",
        "NormBackward2(inf).self",
        "NormBackward3(inf).result",
        "NormBackward3(inf).self",
        "PdistBackward0(p!=2).result",
        "PdistBackward0(p!=2).self",
        "PdistBackward0.self",
        "PolygammaBackward0.self",
        "RemainderBackward1.other",
        "RemainderBackward1.self",
        "ScatterReduceBackward0.result",
        "ScatterReduceBackward0.self",
        "ScatterReduceBackward0.src",
        "SegmentReduceBackward0.data",
        "SegmentReduceBackward0.result",
        "SoftshrinkBackward0.self",
        "SpecialLogNdtrBackward0.self",
        "ThresholdBackward1.self",
    )
)
"""Readers that compare with what was saved, select by it, divide by its distance from a pole, or raise a power to it,
which overflows where the saved values are far apart."""

RELATIVE = frozenset(
    (
        "AbsBackward0.self",
        "AddcdivBackward0.tensor2",
        "Atan2Backward0.other",
        "Atan2Backward0.self",
        "BinaryCrossEntropyBackward0.self",
        "ClampMinBackward0.self",
        "CopysignBackward0.result",
        "CopysignBackward0.self",
        "CumprodBackward0.result",
        "CumprodBackward0.self",
        "DivBackward0.other",
        "DivBackward0.self",
        "Exp2Backward0.result",
        "ExpBackward0.result",
        "Expm1Backward0.result",
        "FmodBackward1.other",
        "HypotBackward0.other",
        "HypotBackward0.result",
        "HypotBackward0.self",
        "LeakyReluBackward0.self",
        "LeakyReluBackward1.result",
        "LeakyReluBackwardBackward0.self",
        "LinalgCholeskyExBackward0.L",
        "LinalgEighBackward0.eigenvalues",
        "LinalgLstsqBackward0.self",
        "LinalgLuBackward0.U",
        "LinalgLuFactorExBackward0.LU",
        "LinalgLuSolveBackward0.LU",
        "LinalgLuSolveBackward0.result",
        "LinalgPinvBackward0.result",
        "LinalgQrBackward0.R",
        "LinalgSlogdetBackward0.A",
        "LinalgSolveExBackward0.A",
        "LinalgSolveTriangularBackward0.result",
        "LinalgSolveTriangularBackward0.self",
        "LinalgSvdBackward0.S",
        "LinalgVectorNormBackward0.result",
        "LinalgVectorNormBackward0.self",
        "Log10Backward0.self",
        "Log2Backward0.self",
        "LogBackward0.self",
        "LogitBackward0.self",
        "MvlgammaBackward0.self",
        "NormBackward0.self",
        "NormBackward1.self",
        "OrmqrBackward0.result",
        "PowBackward0(exponent<1).self",
        "PowBackward1.exponent",
        "PowBackward1.self",
        "PreluKernelBackward0.self",
        "ProdBackward1.self",
        "ReluBackward0.result",
        "RenormBackward0.self",
        "RreluWithNoiseBackward0.self",
        "SpecialI1Backward0.result",
        "SpecialI1EBackward0.self",
        "SpecialZetaBackward1.other",
        "SqrtBackward0.result",
        "StandardGammaBackward0.result",
        "StandardGammaBackward0.self",
        "StdBackward0.self",
        "StdMeanBackward0.self",
        "ThresholdBackward0.self",
        "TriangularSolveBackward0.A",
        "TriangularSolveBackward0.solution",
        "XlogyBackward0.other",
        "XlogyBackward1.other",
    )
)
"""Readers that divide by what was saved, take its sign, or whose numbers span many powers: rounding to fewer bits
passes, codes of a group do not."""
