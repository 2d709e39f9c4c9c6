"""Random programs that mean the same in every framework."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tensorstash.testing.lab import Lab
from tensorstash.testing.layouts import floats

Shape = tuple[int, int]


@dataclass(frozen=True)
class Step:
    """One operation on earlier values; operands are taken modulo the number of values."""

    operation: str
    left: int
    right: int


@dataclass(frozen=True)
class Rewrite:
    """A write that bumps no version, into memory that the user owns, before step ``at`` or after the forward pass.

    ``which`` is the buffer or the value, modulo the number of those that are held; the user may let go of it then.
    """

    at: int
    which: int
    value: float
    drops: bool


@dataclass(frozen=True)
class Edit:
    """A change in place, that no graph records, of the value that step ``at`` has made.

    The framework may count it, as under ``no_grad``, and ``value`` is added; or not, as where ``.data`` is overwritten.
    """

    at: int
    versioned: bool
    value: float


@dataclass(frozen=True)
class Program:
    """Matrices in, a scalar out.

    Args:
        shape: of the leaf.
        steps: each appends a value.
        dtype: of the leaf.
        modified: a value that is changed in place after the forward pass, or None.
        holds: bit n says whether the program holds value n until after backward; else it lets go of it when no further
            step needs it.
        rewrites: what is written without a bump.
        edits: what is done to values without a record.
    """

    shape: Shape
    steps: tuple[Step, ...]
    dtype: str
    modified: int | None = None
    holds: int = -1
    rewrites: tuple[Rewrite, ...] = ()
    edits: tuple[Edit, ...] = ()


OPERATIONS = (
    "tanh", "relu", "softmax", "mul", "square", "gram", "transpose", "rows", "columns", "reshape", "split",
    "gather", "expand", "owned", "owned columns",
)  # fmt: skip


def programs(*, modified: bool = False, rewrites: bool = False, edits: bool = False) -> st.SearchStrategy[Program]:
    operations = st.sampled_from(OPERATIONS)
    if rewrites:  # more of what they can change
        operations = st.one_of(operations, st.sampled_from(["owned", "owned columns"]))
    steps = st.builds(Step, operations, st.integers(0, 20), st.integers(0, 20))
    values = st.sampled_from([0.0, 0.5, -1.5, 3.0])
    editing = st.builds(Edit, st.integers(0, 9), st.booleans(), values)
    rewriting = st.builds(Rewrite, st.integers(0, 11), st.integers(0, 20), values, st.booleans())
    return st.builds(
        Program,
        st.tuples(st.integers(1, 6), st.integers(1, 6)),
        st.lists(steps, min_size=1, max_size=10).map(tuple),
        st.sampled_from(["float32", "float64"]),
        st.integers(0, 20) if modified else st.none(),
        st.integers(0, 2**11 - 1) | st.sampled_from([0, -1]),
        st.lists(rewriting, min_size=1, max_size=6).map(tuple) if rewrites else st.just(()),
        st.lists(editing, min_size=1, max_size=3).map(tuple) if edits else st.just(()),
    )


class Owned:
    """Buffers of the user: matrices that steps multiply with, made when they are first needed.

    Where a rewrite ``replaces`` a buffer, all saved tensors stay as they were when they were saved.
    """

    def __init__(self, lab: Lab, dtype: str, *, replaces: bool) -> None:
        self._lab, self._dtype, self._replaces = lab, dtype, replaces
        self._buffers: dict[tuple[int, Shape], Any] = {}

    def buffer(self, number: int, shape: Shape) -> Any:
        key = number % 2, shape
        if key not in self._buffers:
            values = floats(*shape, dtype=self._dtype, seed=key[0] + 1)
            self._buffers[key] = self._lab.tensor(values)
        return self._buffers[key]

    def rewrite(self, rewrite: Rewrite) -> None:
        if not self._buffers:
            return
        key = list(self._buffers)[rewrite.which % len(self._buffers)]
        if self._replaces:
            values = np.full(key[1], rewrite.value, self._dtype)
            self._buffers[key] = self._lab.tensor(values)
        else:
            self._lab.write_unversioned(self._buffers[key], rewrite.value)
        if rewrite.drops:
            del self._buffers[key]


class Forward:
    """The forward pass of a program, and the values that its user holds by then, by their number.

    With ``values_too`` every other rewrite is one of a value that the program computed, and holds.
    """

    def __init__(
        self,
        lab: Lab,
        program: Program,
        *,
        replaces: bool = False,
        values_too: bool = False,
        held: dict[int, Any] | None = None,
    ) -> None:
        self._lab, self._program, self._values_too = lab, program, values_too
        self._owned = Owned(lab, program.dtype, replaces=replaces)
        self.held: dict[int, Any] = {} if held is None else held
        self.leaf = lab.tensor(floats(*program.shape, dtype=program.dtype), requires_grad=True)
        values = {0: (self.leaf * 1.0, program.shape)}
        self.loss = values[0][0].tanh().sum()
        for number, step in enumerate(program.steps):
            self._hold(values, number)
            self._rewrite(lambda at, number=number: at == number)
            operands = [values[index % (number + 1)] for index in (step.left, step.right)]
            made = values[number + 1] = _apply(lab, step, *operands, self._owned)
            del operands
            self._edit(number, made[0])
            self.loss = self.loss + made[0].tanh().sum()
            del made
        self._hold(values, len(program.steps))

    def _hold(self, values: dict[int, tuple[Any, Shape]], number: int) -> None:
        """Hold the newest value if the program does, and let go of what neither a step nor the program needs."""
        program = self._program
        if program.holds >> number & 1 or (program.modified is not None and self.modified_number == number):
            self.held[number] = values[number][0]
        steps = list(enumerate(program.steps))[number:]
        needed = {index % (at + 1) for at, step in steps for index in (step.left, step.right)}
        for unneeded in set(values) - needed:
            del values[unneeded]

    @property
    def modified_number(self) -> int:
        """The number of the value that the program changes in place."""
        assert self._program.modified is not None
        return self._program.modified % (len(self._program.steps) + 1)

    def _edit(self, number: int, value: Any) -> None:
        for edit in self._program.edits:
            if edit.at % len(self._program.steps) == number:
                if edit.versioned:
                    self._lab.add_(self._lab.backend.detached(value), edit.value)
                else:
                    self._lab.write_unversioned(value, edit.value)

    def finish(self) -> None:
        """Do what is done between the forward pass and backward."""
        self._rewrite(lambda at: at >= len(self._program.steps))

    def _rewrite(self, is_due: Callable[[int], bool]) -> None:
        for place, rewrite in enumerate(self._program.rewrites):
            if not is_due(rewrite.at):
                continue
            if self._values_too and place % 2 and self.held:
                held = list(self.held.values())
                self._lab.write_unversioned(held[rewrite.which % len(held)], rewrite.value)
            else:
                self._owned.rewrite(rewrite)


def _apply(lab: Lab, step: Step, left: Any, right: Any, owned: Owned) -> tuple[Any, Shape]:
    (x, (rows, columns)), (y, other) = left, right
    match step.operation:
        case "tanh":
            return x.tanh(), (rows, columns)
        case "relu":
            return lab.relu(x), (rows, columns)
        case "softmax":
            return x.softmax(1), (rows, columns)
        case "mul" if other == (rows, columns):
            return x * y, (rows, columns)
        case "mul" | "square":
            return x * x, (rows, columns)
        case "gram":
            return x @ x.T, (rows, rows)
        case "transpose":
            return x.T, (columns, rows)
        case "rows":
            start = step.right % rows
            return x[start:rows], (rows - start, columns)
        case "columns":
            stop = step.right % columns + 1
            return x[:, :stop], (rows, stop)
        case "reshape":
            return x.reshape(columns, rows), (columns, rows)
        case "split" if columns % 2 == 0:
            return x[:, : columns // 2] * x[:, columns // 2 :], (rows, columns // 2)
        case "gather":
            chosen = np.array([step.right % rows, 0, step.right % rows])
            return x[lab.tensor(chosen)], (3, columns)
        case "owned":
            return x * owned.buffer(step.right, (rows, columns)), (rows, columns)
        case "owned columns":
            part = owned.buffer(step.right, (rows, columns + 1))[:, 1 : columns + 1]
            return x * part, (rows, columns)
        case "expand" if rows == 1:
            return x.expand(4, columns) * 0.5, (4, columns)
    return x * 0.5, (rows, columns)
