"""The accuracy that operations of PyTorch need of saved tensors; ``tests/torch/reader_search.py`` measures it again for
every version of PyTorch."""

from collections.abc import Callable, Mapping
from functools import cache
from math import isinf
from types import MappingProxyType
from typing import Any

from tensorstash.backends.readers import listed
from tensorstash.protocols import Demand


@cache
def demand(reader: str) -> Demand:
    """Return the demand of a reader: the exact tensor unless it is listed.

    Functions written in Python or C++, compiled graphs and operations of later versions are not listed.

    Args:
        reader: an operation, its variant and the name of the saved tensor, such as ``"PowBackward0(exponent<1).self"``.

    >>> demand("AmaxBackward0.self"), demand("LogBackward0.self"), demand("MmBackward0.self"), demand("MineBackward.x")
    ('exact', 'relative', 'any', 'exact')
    """
    return listed(__file__).get(reader, "exact")


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
