"""What a row of the table is: an operator, and how its inputs are made."""

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
import paddle

MODULES = {
    "paddle": paddle,
    "operator": operator,
    "Tensor": paddle.Tensor,
    "F": paddle.nn.functional,
    "linalg": paddle.linalg,
    "fft": paddle.fft,
    "signal": paddle.signal,
    "geometric": paddle.geometric,
    "incubate": paddle.incubate,
    "fused": paddle.incubate.nn.functional,
    "vision": paddle.vision.ops,
}
"""Where the first word of an operator's name stands for."""

Values = Any
"""An array of NumPy."""


@dataclass(frozen=True)
class Input:
    """One tensor that an operator is given.

    Args:
        kind: ``"x"`` differentiable, ``"c"`` a constant of the same type, ``"i"`` an int64, ``"b"`` a boolean.
        shape: in the ordinary case.
        low: of the values; they are uniform.
        high: of the values, itself not among them.
        made: makes the values of their like, so that a matrix is positive definite, or labels are sorted.
        edges: of where the operator is defined, if that is more than what the values are drawn from.
    """

    kind: str
    shape: tuple[int, ...]
    low: float
    high: float
    made: Callable[[Values], Values] | None = None
    edges: tuple[float, float] | None = None

    def values(self, random: np.random.RandomState, dtype: str) -> Values:
        """Return values; NumPy has no bfloat16, which comes as float32."""
        if self.kind == "i":
            drawn = random.randint(int(self.low), int(self.high), self.shape).astype(np.int64)
        elif self.kind == "b":
            drawn = random.rand(*self.shape) < 0.5
        else:
            drawn = self.low + (self.high - self.low) * random.rand(*self.shape)
            if dtype.startswith("complex"):
                drawn = drawn + 1j * (self.low + (self.high - self.low) * random.rand(*self.shape))
        made = np.asarray(drawn if self.made is None else self.made(np.asarray(drawn)))
        return made if self.kind in "ib" else made.astype("float32" if dtype == "bfloat16" else dtype)


@dataclass(frozen=True)
class Row:
    """One operator with example inputs.

    Args:
        name: the operator's, its first word a key of :data:`MODULES`; or any, with ``call``.
        inputs: tensors, or lists of tensors, by position.
        attributes: what it is given besides, by keyword.
        call: what is called instead of the operator of that name.
        dtypes: of the floating-point inputs, where the operator is meant for few.
    """

    name: str
    inputs: tuple[Input | list[Input], ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    call: Callable[..., Any] | None = None
    dtypes: tuple[str, ...] | None = None

    @property
    def id(self) -> str:
        """The name with the attributes."""
        said = ",".join(f"{key}={value}" for key, value in self.attributes.items())
        return (f"{self.name}({said})" if said else self.name).replace(" ", "")

    def run(self, tensors: list[Any]) -> Any:
        """Call the operator."""
        function = self.call or reduce(getattr, self.name.split(".")[1:], MODULES[self.name.split(".")[0]])
        return function(*tensors, **self.attributes)

    def flat(self) -> Iterator[Input]:
        """Yield the inputs, those of lists, too."""
        for one in self.inputs:
            yield from one if isinstance(one, list) else [one]

    def nested(self, flat: list[Any]) -> list[Any]:
        """Put one thing for each input where the inputs are."""
        rest = iter(flat)
        return [[next(rest) for _ in one] if isinstance(one, list) else next(rest) for one in self.inputs]


def x(*shape: int, low: float = -1.25, high: float = 1.5, made: Any = None, edges: Any = None) -> Input:
    """A differentiable input."""
    return Input("x", shape or (3, 4), low, high, made, edges)


def c(*shape: int, low: float = -1.25, high: float = 1.5, made: Any = None) -> Input:
    """A constant input."""
    return Input("c", shape or (3, 4), low, high, made)


def i(*shape: int, high: int, low: int = 0, made: Any = None) -> Input:
    """Indices or labels."""
    return Input("i", shape, low, high, made)


def b(*shape: int) -> Input:
    """A mask."""
    return Input("b", shape or (3, 4), 0, 1)


def positive(*shape: int, low: float = 0.25, high: float = 2.0) -> Input:
    """A differentiable input above zero."""
    return x(*shape, low=low, high=high, edges=(0.0, high))


def many(names: str, *inputs: Input | list[Input], **attributes: Any) -> list[Row]:
    """One row for each of the names, all alike."""
    return [Row(name, inputs, attributes) for name in names.split()]


def one(name: str, *inputs: Input | list[Input], **attributes: Any) -> Row:
    """A row for the operator of that name."""
    return Row(name, inputs, attributes)


def call(name: str, function: Callable[..., Any], *inputs: Input | list[Input]) -> Row:
    """A row for what is written as a function."""
    return Row(name, inputs, call=function)


def only(dtypes: str, *rows: Row) -> list[Row]:
    """The same rows for these types only."""
    return [replace(row, dtypes=tuple(dtypes.split())) for row in rows]
