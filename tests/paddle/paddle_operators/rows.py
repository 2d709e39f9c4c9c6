"""The table of ``operators.txt``: each row calls an operator, and says how its inputs are made."""

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from math import inf
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import paddle

Values = Any
"""An array of NumPy."""


@dataclass(frozen=True)
class Input:
    """One tensor that an operator is given, of uniform values.

    Args:
        kind: ``"x"`` differentiable, ``"c"`` a constant of the same type, ``"i"`` an int64, ``"b"`` a boolean.
        shape: in the ordinary case.
        low: of the values.
        high: of the values, itself not among them.
        made: makes the values of their like, so that a matrix is positive definite, or labels are sorted.
        edges: of the operator's domain, where that is larger.
    """

    kind: str
    shape: tuple[int, ...]
    low: float = -1.25
    high: float = 1.5
    made: Callable[[Values], Values] | None = None
    edges: tuple[float, float] | None = None

    @property
    def domain(self) -> tuple[float, float]:
        """Where the operator is defined."""
        return self.edges or (self.low, self.high)

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


def _maker(kind: str, **settings: Any) -> Callable[..., Input]:
    return lambda *shape, **more: Input(kind, shape or (3, 4), **{**settings, **more})


def _definite(a: Values) -> Values:
    n = a.shape[-1] if a.ndim else 1
    return a @ np.conj(np.swapaxes(a, -1, -2)) + n * np.eye(n) if a.ndim > 1 else np.abs(a) + 1


def _regular(a: Values) -> Values:
    return a + 3 * np.eye(a.shape[-1]) if a.ndim > 1 else a


def _lower(a: Values) -> Values:
    return np.tril(_regular(a)) if a.ndim > 1 else a


def _boxes(a: Values) -> Values:
    return np.array([[0, 0, 4, 4], [1, 1, 6, 5], [2, 0, 7, 7]])[: len(a)] if a.ndim else a


INPUTS = {
    "x": _maker("x"),
    "z": _maker("x"),
    "c": _maker("c"),
    "i": _maker("i", low=0),
    "b": _maker("b"),
    "positive": _maker("x", low=0.25, high=2.0, edges=(0.0, 2.0)),
    "unit": _maker("x", low=0.1, high=0.9, edges=(0.0, 1.0)),
    "definite": _maker("x", made=_definite),
    "regular": _maker("x", made=_regular),
    "lower": _maker("x", made=_lower),
    "boxes": _maker("c", made=_boxes),
    "signs": _maker("c", made=lambda a: np.where(a.real > 0, 1.0, -1.0)),
    "labels": _maker("i", low=0, made=lambda a: np.sort(a.reshape(-1)).reshape(a.shape)),
    "orders": _maker("i", low=0, made=lambda a: np.argsort(np.random.RandomState(1).rand(3, 4), 0)),
}
"""What makes an input of each kind; ``z`` is of an operator for complex numbers alone."""


def _put(tensor: paddle.Tensor, index: Any, value: Any) -> paddle.Tensor:
    tensor[index] = value
    return tensor


def _unpooled(tensor: paddle.Tensor) -> paddle.Tensor:
    rank = tensor.ndim - 2
    _, where = getattr(paddle.nn.functional, f"max_pool{rank}d")(paddle.ones_like(tensor), 2, return_mask=True)
    pooled = tensor[(..., *(slice(0, 2) for _ in range(rank)))]
    return getattr(paddle.nn.functional, f"max_unpool{rank}d")(pooled, where, 2)


NAMES = {
    "np": np,
    "inf": inf,
    "operator": operator,
    "put": _put,
    "unpooled": _unpooled,
    "tensor": paddle.to_tensor,
    "Tensor": paddle.Tensor,
    "F": paddle.nn.functional,
    "vision": paddle.vision.ops,
    "fused": paddle.incubate.nn.functional,
    **{name: getattr(paddle, name) for name in ("nn", "linalg", "fft", "signal", "geometric", "incubate")},
    "paddle": paddle,
}
"""Whatever else a row may name."""


@dataclass(frozen=True)
class Row:
    """One operator with example inputs, which the code of the call has as items of ``given``."""

    name: str
    inputs: list[Input]
    code: CodeType
    dtypes: tuple[str, ...] | None

    def run(self, tensors: list[Any]) -> Any:
        """Call the operator."""
        return eval(self.code, {**NAMES, "given": tensors})


class _Inputs(ast.NodeTransformer):
    """Takes inputs out of an expression."""

    def __init__(self) -> None:
        self.found: list[Input] = []

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id in INPUTS:
            self.found.append(eval(ast.unparse(node), {**NAMES, **INPUTS}))
            return ast.parse(f"given[{len(self.found) - 1}]", mode="eval").body
        return self.generic_visit(node)


def _row(text: str) -> Row:
    inputs = _Inputs()
    called = ast.fix_missing_locations(inputs.visit(ast.parse(text, mode="eval")))
    is_complex = re.search(r"\bz\(", text)
    dtypes = ("complex64", "complex128") if is_complex else None
    return Row(text.partition("(")[0], inputs.found, compile(called, text, "eval"), dtypes)


def _written_out(line: str) -> list[str]:
    """Return the line with each of its alternatives, and those of operators that have a form in place, in that form."""
    first, *rest = re.split(r"\{([^{}]*)\}", line)
    chosen = product(*(choice.split("|") for choice in rest[::2]))
    texts = [first + "".join(map("".join, zip(choices, rest[1::2], strict=True))) for choices in chosen]
    calls = [(text, call) for text in texts if (call := re.match(r"(paddle|F)\.(\w+)\((?!z)", text))]
    for text, call in calls:
        homes = {"paddle": ("paddle", "Tensor"), "F": ("F",)}[call[1]]
        home = next((home for home in homes if hasattr(NAMES[home], f"{call[2]}_")), None)
        texts += [f"{home}.{call[2]}_{text[call.end(2) :]}"] if home else []
    return texts


_LINES = Path(__file__).with_name("operators.txt").read_text(encoding="utf-8").splitlines()
ROWS = {text: _row(text) for line in _LINES if line and line[0] != "#" for text in _written_out(line)}
"""Every row by its text."""
