"""A case: a row of the table in a layout, of a type, run once; what came out of it, in bits."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import paddle
from paddle import Tensor
from paddle_cases import bits

from .rows import ROWS, Input, Values

LAYOUTS = ("contiguous", "transposed", "sliced", "reversed", "expanded", "0-d", "empty")
DTYPES = ("float32", "float64", "float16", "bfloat16", "complex64")
LARGE = (6, 128)
"""The shape of all inputs in the layout that is called large, which is none of those above; rows are a group of
``Quantize`` long."""

View = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """One row in one layout, of one type."""

    row: str
    layout: str
    dtype: str

    @property
    def id(self) -> str:
        """One line that says which."""
        return f"{self.row} | {self.layout} | {self.dtype}"

    def inputs(self) -> list[Input]:
        """The row's inputs, in the shapes of this layout."""
        shaped = ROWS[self.row].inputs
        if self.layout == "large":
            return [replace(one, shape=LARGE) for one in shaped]
        if self.layout == "0-d":
            return [replace(one, shape=()) for one in shaped]
        if self.layout == "empty":
            first = next(one.shape[0] for one in shaped if one.shape)
            return [replace(one, shape=_emptied(one.shape, first)) for one in shaped]
        return shaped


def every_case() -> Iterator[Case]:
    """Yield the cases of all rows that are not excluded, in the layouts that an input of the row can have."""
    excluded = _exclusions()
    for name, row in ROWS.items():
        ranks = [len(one.shape) for one in row.inputs]
        for layout in LAYOUTS:
            least = {"transposed": 2, "expanded": 1, "sliced": 1, "reversed": 1, "0-d": 1, "empty": 1}.get(layout, 0)
            if max(ranks) >= least:
                cases = (Case(name, layout, dtype) for dtype in row.dtypes or DTYPES)
                yield from (case for case in cases if case not in excluded)


def _exclusions() -> set[Case]:
    """Return the cases of a file: each line has layouts, types, and how the rows begin that these are left out of."""
    found = set()
    lines = Path(__file__).with_name("exclusions.txt").read_text(encoding="utf-8").splitlines()
    for layouts, dtypes, beginnings in (line.split(" | ") for line in lines if line[0] != "#"):
        for beginning in beginnings.split(" ; "):
            rows = [row for row in ROWS if row.startswith(beginning)]
            assert rows, f"no such row: {beginning!r}"
            found |= {Case(*case) for case in product(rows, layouts.split(","), dtypes.split(","))}
    return found


@dataclass
class Ran:
    """The shape, type and bits of the outputs of a run and of the gradients, and the tensors that backward changed."""

    outputs: list[Any]
    gradients: list[Any]
    changed: list[str]


class NoGradientError(Exception):
    """Nothing that came out depends differentiably on what went in."""


def run(
    case: Case,
    scope: AbstractContextManager[Any] | None = None,
    made: Any = None,
    look: Callable[[list[Tensor]], None] = lambda returned: None,
) -> Ran:
    """Run a case forward inside the scope, and backward after it; raise whatever Paddle says against it.

    Args:
        case: which.
        scope: none for plain Paddle.
        made: replaces how the values are made, given the input, the random state and the type.
        look: is shown what the operator returned, before backward.
    """
    row = ROWS[case.row]
    random = np.random.RandomState(crc32(case.row.encode()))
    leaves, views = [], []
    for one in case.inputs():
        values = (made or Input.values)(one, random, case.dtype)
        leaf, view = _leaf_and_view(values, one, case)
        leaves.append(leaf)
        # Leaves that require gradients are not moved: what the operator gets was computed.
        views.append(view(paddle.assign(leaf)))
    paddle.seed(1234)
    with scope or nullcontext():
        returned = [one for one in paddle.utils.flatten(row.run(views)) if isinstance(one, Tensor)]
    look(returned)
    outputs = [bits(one) for one in returned]
    inputs = [bits(one) for one in views]
    derived = [one for one in returned if not one.stop_gradient and (one.is_floating_point() or one.is_complex())]
    if not derived:
        raise NoGradientError
    paddle.autograd.backward(derived, [_weights(one) for one in derived])
    gradients = [bits(leaf.grad) for leaf, one in zip(leaves, case.inputs(), strict=True) if one.kind == "x"]
    if not any(gradients):
        raise NoGradientError
    changed = [f"output {k}" for k, one in enumerate(returned) if bits(one) != outputs[k]]
    changed += [f"input {k}" for k, one in enumerate(views) if bits(one) != inputs[k]]
    return Ran(outputs, gradients, changed)


def _weights(tensor: Tensor) -> Tensor:
    """Return a gradient whose elements differ, so that one in the wrong place does not go unnoticed."""
    count = int(np.prod(tensor.shape))
    return paddle.to_tensor((np.arange(count) % 7 + 1.0).reshape(tensor.shape) / 4).astype(tensor.dtype)


def _leaf_and_view(values: Values, one: Input, case: Case) -> tuple[Tensor, View]:
    base, view = _laid_out(values, case.layout)
    tensor = paddle.to_tensor(np.ascontiguousarray(base).reshape(base.shape))
    if case.dtype == "bfloat16" and one.kind in "xc":
        tensor = tensor.astype("bfloat16").detach()
    tensor.stop_gradient = one.kind != "x"
    return tensor, view


def _laid_out(values: Values, layout: str) -> tuple[Values, View]:
    rank = values.ndim
    if layout == "transposed" and rank > 1:
        order = [*range(rank - 2), rank - 1, rank - 2]
        return values.transpose(order), lambda tensor: tensor.transpose(order)
    if layout == "sliced" and rank:
        return np.pad(values, 1, "edge"), lambda tensor: tensor[(slice(1, -1),) * rank]
    if layout == "reversed" and rank:
        back = (slice(None, None, -1),) * rank
        return values[back], lambda tensor: tensor[back]
    if layout == "expanded" and rank:
        return values[:1], lambda tensor: tensor.expand(list(values.shape))
    return values, lambda tensor: tensor


def _emptied(shape: tuple[int, ...], first: int) -> tuple[int, ...]:
    return (0, *shape[1:]) if shape and shape[0] == first else shape
