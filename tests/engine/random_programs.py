"""Random programs that mean the same in every framework, and what a session may do with them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

import tensorstash as ts
from tensorstash.policies import StoreIn
from tensorstash.selectors import MaxBytes
from tensorstash.stores.memory import Memory
from tensorstash.testing.lab import Lab
from tensorstash.testing.layouts import floats

Shape = tuple[int, int]

LOSSLESS: dict[str, Callable[[str], ts.HookPolicy]] = {
    "keep": lambda directory: ts.Keep(),
    "cpu_offload": lambda directory: ts.CpuOffload(),
    "memory": lambda directory: StoreIn(Memory()),
    "compress": lambda directory: ts.Compress(),
    "disk": lambda directory: ts.DiskSpill(directory),
    "compress | disk": lambda directory: ts.Compress() | ts.DiskSpill(directory),
    "route": lambda directory: ts.Route(
        (ts.Rule(MaxBytes(80), ts.Compress()), ts.Rule(MaxBytes(200), ts.Keep())), otherwise=ts.DiskSpill(directory)
    ),
}


@dataclass(frozen=True)
class Step:
    """One operation on earlier values; operands are taken modulo the number of values."""

    operation: str
    left: int
    right: int


@dataclass(frozen=True)
class Program:
    """Matrices in, a scalar out.

    Args:
        shape: of the leaf.
        steps: each appends a value.
        dtype: of the leaf.
        modified: a value that is changed in place after the forward pass, or None.
    """

    shape: Shape
    steps: tuple[Step, ...]
    dtype: str
    modified: int | None = None


OPERATIONS = (
    "tanh", "relu", "softmax", "mul", "square", "gram", "transpose", "rows", "columns", "reshape", "concat", "split",
    "gather", "expand",
)  # fmt: skip


def programs(*, modified: bool = False) -> st.SearchStrategy[Program]:
    steps = st.builds(Step, st.sampled_from(OPERATIONS), st.integers(0, 20), st.integers(0, 20))
    return st.builds(
        Program,
        st.tuples(st.integers(1, 6), st.integers(1, 6)),
        st.lists(steps, min_size=1, max_size=10).map(tuple),
        st.sampled_from(["float32", "float64"]),
        st.integers(0, 20) if modified else st.none(),
    )


def limits() -> st.SearchStrategy[ts.Limits]:
    nbytes = st.sampled_from([0, 1, 64, 200, 1000, 10**6])
    threads = st.integers(1, 3)
    return st.builds(ts.Limits, in_flight=nbytes, ahead=nbytes, writers=threads, readers=threads, timeout_s=st.just(60))


def forward(lab: Lab, device: str, program: Program):
    """Return the leaf, the loss and every value in between."""
    leaf = lab.tensor(floats(*program.shape, dtype=program.dtype), device=device, requires_grad=True)
    values = [(lab.mul(leaf, 1.0), program.shape)]
    for step in program.steps:
        values.append(_apply(lab, device, step, *(values[i % len(values)] for i in (step.left, step.right))))
    loss = lab.sum(lab.tanh(values[0][0]))
    for value, _ in values[1:]:
        loss = loss + lab.sum(lab.tanh(value))
    return leaf, loss, [value for value, _ in values]


def _apply(lab: Lab, device: str, step: Step, left, right):
    (x, (rows, columns)), (y, other) = left, right
    match step.operation:
        case "tanh":
            return lab.tanh(x), (rows, columns)
        case "relu":
            return lab.relu(x), (rows, columns)
        case "softmax":
            return lab.softmax(x, 1), (rows, columns)
        case "mul" if other == (rows, columns):
            return lab.mul(x, y), (rows, columns)
        case "mul" | "square":
            return lab.mul(x, x), (rows, columns)
        case "gram":
            return lab.matmul(x, lab.transpose(x)), (rows, rows)
        case "transpose":
            return lab.transpose(x), (columns, rows)
        case "rows":
            start = step.right % rows
            return lab.rows(x, start, rows), (rows - start, columns)
        case "columns":
            stop = step.right % columns + 1
            return lab.columns(x, 0, stop), (rows, stop)
        case "reshape":
            return lab.reshape(x, (columns, rows)), (columns, rows)
        case "concat" if rows <= 6:
            return lab.concat([x, x], 0), (2 * rows, columns)
        case "split" if columns % 2 == 0:
            first, second = lab.split(x, columns // 2, 1)
            return lab.mul(first, second), (rows, columns // 2)
        case "gather":
            chosen = np.array([step.right % rows, 0, step.right % rows])
            return lab.gather(x, lab.tensor(chosen, device=device)), (3, columns)
        case "expand" if rows == 1:
            return lab.mul(lab.expand(x, (4, columns)), 0.5), (4, columns)
    return lab.mul(x, 0.5), (rows, columns)
