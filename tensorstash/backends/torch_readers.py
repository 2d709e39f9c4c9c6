"""What the operations of PyTorch do with what they have saved: which of them a lossy codec must not reach.

The list is measured, not written: ``tests/torch/reader_search.py`` hands each operation in PyTorch's operator database
one saved tensor at a time as a lossy codec brings it back, and compares the gradients. It runs again for every version
of PyTorch.
"""

from collections.abc import Callable, Mapping
from math import isinf
from types import MappingProxyType
from typing import Any, Literal

Demand = Literal["exact", "relative", "any"]
"""What a reader needs of a saved tensor: its bits; a small error relative to each element; or one relative to the
largest of a group."""

BOUND = 0.05
"""What the gradients of an operation whose readers take any tensor stay within, under ``Quantize(8)`` and
``Cast("bfloat16")``: relative to the root mean square of the gradient's elements. Most stay within 0.02."""


def demand(reader: str) -> Demand:
    """Return what a reader needs; those that are not listed, functions written in Python among them, take any tensor.

    Args:
        reader: an operation, its variant and the name of what it saved, such as ``"PowBackward0(exponent<1).self"``.

    >>> demand("AmaxBackward0.self"), demand("LogBackward0.self"), demand("MmBackward0.self")
    ('exact', 'relative', 'any')
    """
    return "exact" if reader in EXACT else "relative" if reader in RELATIVE else "any"


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

EXACT = frozenset(("AmaxBackward0.self",))
"""Readers that compare with what was saved, select by it or divide by its distance from a pole."""

RELATIVE = frozenset(("LogBackward0.self",))
"""Readers that divide by what was saved, or take its sign: rounding to fewer bits passes, codes of a group do not."""
