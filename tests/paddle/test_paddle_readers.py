"""Who reads a saved tensor is known inside ``pack``."""

from collections.abc import Callable
from typing import Any

import paddle
import pytest
from paddle_cases import layer, leaf, noise
from paddle_operators.cases import Case, Ran, run

import tensorstash as ts
from tensorstash.backends.paddle import nodes
from tensorstash.backends.paddle.nodes import reader
from tensorstash.policies import Quantize
from tensorstash.policies.plan import READ_EXACTLY

READERS = {
    "paddle.max(x())": "MaxGradNode exact",
    "paddle.min(x(3, 4, 2), axis=1)": "MinGradNode exact",
    "F.max_pool2d(x(2, 3, 8, 8), kernel_size=2)": "Pool2dGradNode exact",
    "F.max_pool2d(x(2, 3, 8, 8), kernel_size=2, return_mask=True)": "MaxPool2dWithIndexGradNode any",
    "F.maxout(x(2, 6, 3, 3), groups=3)": "MaxoutGradNode exact",
    "geometric.segment_max(x(5, 4), labels(5, high=3))": "SegmentPoolGradNode exact",
    "paddle.sqrt(positive())": "SqrtGradNode relative",
    "Tensor.sqrt_(positive())": "SqrtGradNode relative",
    "paddle.log(positive())": "LogGradNode relative",
    "positive() ** 0.5": "PowGradNode relative",
    "x() / positive()": "DivideGradNode relative",
    "paddle.matmul(x(), x(4, 5))": "MatmulGradNode any",
    "x() @ x(4, 5)": "MatmulGradNode any",
    "F.conv2d(x(2, 4, 6, 6), x(4, 1, 3, 3), groups=4)": "DepthwiseConv2dGradNode any",
}

NORMS = [
    "F.layer_norm(x(2, 8, 128), 128, None)",
    "F.batch_norm(x(4, 16, 128), c(16), positive(16), positive(16), x(16), training=True)",
    "F.instance_norm(x(2, 8, 12, 12), weight=positive(8), bias=x(8))",
]


def of_row(row: str, scope: Any = None, **made: Any) -> Ran:
    """Run a row of the table of operators."""
    return run(Case(row, "contiguous", "float32"), scope, **made)


def told(backend: Any, program: Callable[[Any], Any]) -> list[tuple[int, str]]:
    """What is saved in a scope: of how many axes, and who is said to read it, and how exactly."""
    seen = []

    def pack(saved: paddle.Tensor) -> paddle.Tensor:
        seen.append((saved.ndim, f"{reader()} {backend.demand(saved)}"))
        return saved.detach()

    program(backend.hooks(pack, lambda saved: saved))
    return seen


def told_of(backend: Any, function: Callable[..., paddle.Tensor]) -> set[str]:
    """Who is said to read what a function of a matrix saves."""

    def program(scope: Any) -> None:
        with scope:
            function(leaf(noise(4, 4)) * 1.0)

    return {told for _, told in told(backend, program)}


@pytest.mark.parametrize(("row", "expected"), READERS.items(), ids=READERS.keys())
def test_the_reader_and_its_need_are_known_while_the_tensor_is_packed(backend, row, expected):
    assert {told for _, told in told(backend, lambda scope: of_row(row, scope))} == {expected}


@pytest.mark.parametrize("row", NORMS)
def test_the_statistics_of_a_norm_need_more_than_its_input(backend, row):
    for _ in range(2):
        seen = told(backend, lambda scope: of_row(row, scope))
        most = max(axes for axes, _ in seen)
        assert {told.split()[1] for axes, told in seen if axes == most} == {"any"}
        statistics = [told.split()[1] for axes, told in seen if axes < most]
        assert set(statistics) == {"relative"}
        assert len(statistics) >= 2


@pytest.mark.parametrize("name", ["max(", "min(", "max_pool2d", "maxout", "segment_max", "sqrt", "log", "x() /"])
def test_quantization_leaves_alone_what_backward_compares_with_or_divides_by(name):
    def powers(one: Any, random: Any, dtype: str) -> Any:
        return one.values(random, dtype) ** (8 if one.kind == "x" else 1)

    row = next(row for row in READERS if name in row)
    session = ts.stash(Quantize(8), framework="paddle", min_bytes=0)
    assert of_row(row, session, made=powers) == of_row(row, made=powers)
    assert session.stats().kept[READ_EXACTLY].tensors


def test_the_reader_of_what_a_pylayer_saves_is_not_known(backend):
    square = layer(lambda x: (x * x, [x]), lambda grad, x: 2 * x * grad)
    assert told_of(backend, square) == {"None exact"}


def test_a_reader_is_found_where_each_call_of_python_takes_several_of_c(backend):
    def below(levels: int) -> str | None:
        return next(map(below, [levels - 1])) if levels else reader()

    found = []
    with backend.hooks(lambda tensor: found.append(below(6)) or tensor.detach(), lambda saved: saved):
        paddle.max(leaf(noise(4, 4)) * 1.0)
    assert "MaxGradNode" in found


def test_outside_of_operators_nobody_reads_and_nothing_may_be_lost(backend):
    assert (reader(), backend.demand(leaf(noise(4, 4)))) == (None, "exact")


def test_where_the_stack_cannot_be_looked_up_nothing_may_be_lost(backend, monkeypatch):
    monkeypatch.setattr(nodes, "_process", lambda: None)
    assert told_of(backend, lambda x: x @ x) == {"None exact"}


def test_an_alias_that_was_taken_before_does_not_escape(backend):
    before = paddle._C_ops.max
    assert told_of(backend, lambda x: before(x, [], False)) == {"MaxGradNode exact"}
