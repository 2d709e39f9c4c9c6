"""The use that operations of PyTorch make of saved tensors: some must not get a lossy one.

The list in ``readers.txt`` is measured: ``tests/torch/reader_search.py`` hands each operation in PyTorch's operator
database one saved tensor at a time as a lossy codec brings it back, and compares the gradients. It runs again for every
version of PyTorch.

``exact`` readers compare with the saved tensor, select by it, divide by its distance from a pole, or raise a power to
it, which overflows where the saved values are far apart. ``relative`` readers divide by the saved tensor, take its
sign, or have numbers that span many powers: rounding to fewer bits passes, codes of a group do not.
"""

from collections.abc import Callable, Mapping
from functools import cache
from math import isinf
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from tensorstash.protocols import Demand

BOUND = 0.1
"""The bound of gradients of an operation whose readers take any tensor, under ``Quantize(8)`` and
``Cast("bfloat16")``: relative to the root mean square of the gradient's elements. Half of them stay within 0.006,
nine of ten within 0.026."""


@cache
def demand(reader: str) -> Demand:
    """Return the demand of a reader: the exact tensor unless it is listed.

    Functions written in Python or C++, compiled graphs and operations of later versions are not listed.

    Args:
        reader: an operation, its variant and the name of the saved tensor, such as ``"PowBackward0(exponent<1).self"``.

    >>> demand("AmaxBackward0.self"), demand("LogBackward0.self"), demand("MmBackward0.self"), demand("MineBackward.x")
    ('exact', 'relative', 'any', 'exact')
    """
    return listed().get(reader, "exact")


@cache
def listed() -> Mapping[str, Demand]:
    """Return the demand of each reader that was measured."""
    lines = Path(__file__).with_name("readers.txt").read_text("utf-8").splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    saves = [(row[0], *save.split("=")) for row in rows for save in row[1:]]
    return MappingProxyType({f"{operation}.{place}": cast(Demand, need) for operation, place, need in saves})


def variant(node: Any) -> str:
    """Return the name of a node's operation, with the setting that changes its demand.

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
