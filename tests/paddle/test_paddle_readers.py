"""Who reads a saved tensor is known inside ``pack``."""

from contextlib import nullcontext
from typing import Any

import paddle
import pytest
from paddle import nn
from paddle.autograd import PyLayer
from paddle_cases import bits

import tensorstash as ts
from tensorstash.backends.paddle import readers as paddle_readers
from tensorstash.backends.paddle.readers import reader
from tensorstash.policies import Quantize
from tensorstash.policies.plan import READ_EXACTLY

F = nn.functional


def matrix() -> paddle.Tensor:
    return paddle.rand([4, 4]) + 0.5


def image(rank: int) -> paddle.Tensor:
    return paddle.rand([1, 2] + [4] * rank)


READERS: dict[str, tuple[Any, paddle.Tensor, str, str]] = {
    "max": (lambda t: t.max(), matrix(), "MaxGradNode", "exact"),
    "amax": (lambda t: paddle.amax(t), matrix(), "AmaxGradNode", "exact"),
    "min": (lambda t: t.min(axis=1), matrix(), "MinGradNode", "exact"),
    "amin": (lambda t: paddle.amin(t), matrix(), "AminGradNode", "exact"),
    "max_pool1d": (lambda t: F.max_pool1d(t, 2), image(1), "Pool2dGradNode", "exact"),
    "max_pool2d": (lambda t: F.max_pool2d(t, 2), image(2), "Pool2dGradNode", "exact"),
    "max_pool2d with a mask": (
        lambda t: F.max_pool2d(t, 2, return_mask=True)[0],
        image(2),
        "MaxPool2dWithIndexGradNode",
        "any",
    ),
    "max_pool3d": (lambda t: F.max_pool3d(t, 2), image(3), "Pool3dGradNode", "exact"),
    "maxout": (lambda t: F.maxout(t, 2), image(2), "MaxoutGradNode", "exact"),
    "segment_max": (
        lambda t: paddle.geometric.segment_max(t, paddle.to_tensor([0, 0, 1, 1])),
        matrix(),
        "SegmentPoolGradNode",
        "exact",
    ),
    "sqrt": (paddle.sqrt, matrix(), "SqrtGradNode", "relative"),
    "sqrt_": (lambda t: (t * 1.0).sqrt_(), matrix(), "SqrtGradNode", "relative"),
    "log": (lambda t: t.log(), matrix(), "LogGradNode", "relative"),
    "pow": (lambda t: paddle.pow(t, 0.5), matrix(), "PowGradNode", "relative"),
    "**": (lambda t: t**0.5, matrix(), "PowGradNode", "relative"),
    "/": (lambda t: t / (t + 1.0), matrix(), "DivideGradNode", "relative"),
    "1 /": (lambda t: 1.0 / t, matrix(), "DivideGradNode", "relative"),
    "matmul": (paddle.matmul, matrix(), "MatmulGradNode", "any"),
    "@": (lambda t: t @ t, matrix(), "MatmulGradNode", "any"),
    "gelu": (F.gelu, matrix(), "GeluGradNode", "any"),
    "linear": (nn.Linear(4, 3), matrix(), "MatmulGradNode", "any"),
    "conv": (nn.Conv2D(2, 3, 3), image(2), "Conv2dGradNode", "any"),
}


def told(backend: Any, function: Any, tensor: paddle.Tensor) -> set[tuple[str | None, str]]:
    """Who is said to read what the function saves, and what it needs."""
    return {(name, need) for _, name, need in told_of_each(backend, function, tensor)}


def told_of_each(backend: Any, function: Any, tensor: paddle.Tensor) -> list[tuple[list[int], str | None, str]]:
    """The same for each saved tensor, with its shape."""
    seen = []

    def pack(saved: paddle.Tensor) -> paddle.Tensor:
        seen.append((saved.shape, reader(), backend.demand(saved)))
        return saved.detach()

    leaf = tensor.detach()
    leaf.stop_gradient = False
    given = (leaf * 1.0, leaf * 1.0) if function is paddle.matmul else (leaf * 1.0,)
    with backend.hooks(pack, lambda saved: saved):
        out = function(*given)
    out.sum().backward()
    return seen


@pytest.mark.parametrize(("function", "tensor", "name", "need"), READERS.values(), ids=READERS.keys())
def test_the_reader_and_its_need_are_known_while_the_tensor_is_packed(backend, function, tensor, name, need):
    assert told(backend, function, tensor) == {(name, need)}


def test_the_reader_of_what_a_pylayer_saves_is_not_known(backend):
    class Square(PyLayer):
        @staticmethod
        def forward(ctx, value):
            ctx.save_for_backward(value)
            return value * value

        @staticmethod
        def backward(ctx, grad):
            return 2 * ctx.saved_tensor()[0] * grad

    assert told(backend, Square.apply, matrix()) == {(None, "exact")}


def normalised_over_the_batch(tensor: paddle.Tensor) -> paddle.Tensor:
    return F.batch_norm(tensor, *(paddle.ones([2]) for _ in range(4)), training=True)


@pytest.mark.parametrize(
    ("function", "tensor", "count"),
    [
        (nn.LayerNorm(4), image(2), 2),
        (normalised_over_the_batch, image(2), 2),
        (nn.InstanceNorm2D(2), image(2), 2),
    ],
    ids=["layer norm", "batch norm", "instance norm"],
)
def test_the_statistics_of_a_norm_need_more_than_its_input(backend, function, tensor, count):
    for _ in range(2):
        needs = told_of_each(backend, function, tensor)
        assert {need for shape, _, need in needs if shape == tensor.shape} == {"any"}
        statistics = [need for shape, _, need in needs if shape != tensor.shape]
        assert set(statistics) == {"relative"}
        assert len(statistics) >= count


@pytest.mark.parametrize("name", ["max", "amin", "max_pool2d", "maxout", "segment_max", "sqrt", "log", "/"])
def test_quantization_leaves_alone_what_backward_compares_with_or_divides_by(name):
    function, tensor, _, _ = READERS[name]
    values = tensor.numpy() ** 8

    def gradient(scope):
        leaf = paddle.to_tensor(values, stop_gradient=False)
        inner = leaf * 1.0
        with scope:
            out = function(inner)
        out.sum().backward()
        return bits(leaf.grad)

    session = ts.stash(Quantize(8), framework="paddle", min_bytes=0)
    assert gradient(session) == gradient(nullcontext())
    assert session.stats().kept[READ_EXACTLY].tensors


def test_outside_of_operators_nobody_reads_and_nothing_may_be_lost(backend):
    assert (reader(), backend.demand(matrix())) == (None, "exact")


def test_where_the_stack_cannot_be_looked_up_nothing_may_be_lost(backend, monkeypatch):
    monkeypatch.setattr(paddle_readers, "_process", lambda: None)
    assert told(backend, paddle.matmul, matrix()) == {(None, "exact")}


def test_an_alias_that_was_taken_before_does_not_escape(backend):
    before = paddle._C_ops.max
    assert told(backend, lambda t: before(t, [], False), matrix()) == {("MaxGradNode", "exact")}
