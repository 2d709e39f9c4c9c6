"""What becomes of an operator's gradient if one of the tensors it saved comes back inexactly."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import tensorstash as ts
from tensorstash.policies import Cast, Quantize

from .cases import Case, every_case, run
from .rows import ROWS, Input, Values

LOSSY = {"quantize": Quantize(8), "cast": Cast("bfloat16")}
"""What is lost: an error in proportion to the largest elements around, and one in proportion to each element."""


ATTRIBUTES = {"shape", "shape_or_dtype", "num_or_sections"}  # what says how large an input is
GROUP = Quantize(8).group_size
FEW = 0.25  # which part of the values is near an edge, where that is tried


def _at_edges(one: Input, values: Values, random: np.random.RandomState) -> Values:
    """A few of the values at all distances from where the operator's domain ends."""
    low, high = one.domain
    distance = 10 ** random.uniform(-6, -1, values.shape) * (high - low)
    near = np.where(random.rand(*values.shape) < 0.5, low + distance, high - distance)
    return np.where(random.rand(*values.shape) < FEW, near, values)


def _scaled(axes: slice, one: Input, values: Values, random: np.random.RandomState) -> Values:
    """Values of very different magnitude along some axes, as of tokens or channels.

    Only where what is of one magnitude is a group of ``Quantize`` at least: that small values beside large ones are
    lost is no matter of the operator.
    """
    low, high = one.domain
    scaled = range(values.ndim)[axes]
    if not low <= 0 < high or not scaled or math.prod(values.shape[scaled.stop :]) < GROUP:
        return values
    sizes = [size if axis in scaled else 1 for axis, size in enumerate(values.shape)]
    return values * 10 ** random.uniform(-2.5, 0, sizes)


def _levels(one: Input, values: Values, random: np.random.RandomState) -> Values:
    """Values of which many are equal, as behind a ReLU or in images."""
    step = (one.high - one.low) / 5
    return one.low + np.round((values - one.low) / step) * step


DRAWN = (
    lambda one, values, random: values,
    _at_edges,
    partial(_scaled, slice(0, -1)),
    partial(_scaled, slice(1, 2)),
    _levels,
)
"""How values are drawn, since what is destroyed by a small error depends on where the values are."""


def _made(draw: Callable[..., Values], one: Input, random: np.random.RandomState, dtype: str) -> Values:
    values = one.values(random, dtype)
    is_free = one.kind in "xc" and one.made is None
    return draw(one, values, random).astype(dtype) if is_free else values


def grown(case: Case) -> Case:
    """The same with more elements where that is easy: so one comparison that comes out otherwise is one of many."""
    is_sized = any(f"{attribute}=" in case.row for attribute in ATTRIBUTES)
    is_easy = not is_sized and all(one.shape == (3, 4) and not one.made for one in ROWS[case.row].inputs)
    return replace(case, layout="large") if is_easy else case


def under_lossy_policies(case: Case) -> dict[str, float]:
    """The relative error of the gradients under each lossy policy, with values of each kind; infinite for NaN."""
    found = dict.fromkeys(LOSSY, 0.0)
    for made in (partial(_made, draw) for draw in DRAWN):
        with np.errstate(all="ignore"):
            try:
                expected = _arrays(run(case, None, made))
            except Exception:  # Paddle refuses it in this shape, or with these values
                continue
            for name, policy in LOSSY.items():
                scope = ts.stash(policy, framework="paddle", min_bytes=0)
                error = _relative(*_worst(expected, _arrays(run(case, scope, made))))
                found[name] = max(found[name], error)
    return found


def _arrays(ran: Any) -> list[Any]:
    return [np.frombuffer(one[2], np.float32).astype(np.float64) for one in ran.gradients if one and one[2]]


def _worst(expected: list[Any], got: list[Any]) -> tuple[float, float]:
    """Return the squares of the error and of the gradient, of the gradient that has come to most harm."""
    whole = sum(float(np.sum(one[np.isfinite(one)] ** 2)) for one in expected)
    pairs = []
    for one, other in zip(expected, got, strict=True):
        finite = np.isfinite(one)
        one, other = one[finite], other[finite]
        error = float(np.sum((one - other) ** 2)) if np.isfinite(other).all() else math.inf
        pairs.append((error, max(float(np.sum(one**2)), 1e-6 * whole)))
    return max(pairs, key=lambda pair: pair[0] / pair[1] if pair[1] else pair[0], default=(0.0, 0.0))


def cases_of_readers() -> list[Case]:
    """Return one case for each row that shows what one reader needs; in-place operators have the nodes of others."""
    wanted = {name for name, row in ROWS.items() if not row.dtypes and not row.name.endswith("_")}
    cases = (case for case in every_case() if (case.layout, case.dtype) == ("contiguous", "float32"))
    return [grown(case) for case in cases if case.row in wanted]


def _relative(error: float, whole: float) -> float:
    if whole:
        return math.sqrt(error / whole)
    return math.inf if error else 0.0
