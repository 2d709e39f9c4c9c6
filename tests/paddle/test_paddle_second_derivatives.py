"""Derivatives of derivatives inside a scope, where Paddle saves tensors that have no memory, too."""

from contextlib import nullcontext

import paddle
import pytest
from paddle.autograd import saved_tensors_hooks
from paddle_cases import STASHES, bits, leaf, noise

import tensorstash as ts

PROGRAMS = {
    "add": lambda a, b: a * a + a * 2.0 + b,
    "add of what is broadcast": lambda a, b: (a + b[:1]) * (a[:1] + b),
    "subtract": lambda a, b: (a - b) * (b - a * a),
    "matmul": lambda a, b: a @ b.t() @ a,
    "mean": lambda a, b: (a * b).mean() * a,
    "sum over an axis": lambda a, b: (a * b).sum(0) * (a + b).sum(0),
    "concat and split": lambda a, b: paddle.concat([a * b, a + b])[1:5] * 3.0,
    "reshape and transpose": lambda a, b: (a.reshape([4, 3]) + b.t()).t() * a,
    "maximum": lambda a, b: paddle.maximum(a * a, b) * b,
}
SCOPES = {**STASHES, "a pair that copies": lambda: saved_tensors_hooks(lambda x: x.numpy(), paddle.to_tensor)}


def derivatives(program, scope=nullcontext):
    a, b = (leaf(noise(3, 4, seed=seed)) for seed in (0, 1))
    with scope():
        out = program(a * 1.0, b * 1.0)
        first, second = paddle.grad((out * out).sum(), [a, b], create_graph=True)
    (second * second).sum().backward()
    return [bits(one) for one in (first, second, a.grad, b.grad)]


@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES.keys())
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_derivatives_taken_inside_a_scope_are_bitwise_those_without(program, scope):
    assert derivatives(program, scope) == derivatives(program)


def test_another_thread_takes_second_derivatives_without_a_scope_of_its_own(in_a_thread):
    program = PROGRAMS["add"]
    with ts.stash(ts.Keep(), framework="paddle"):
        got = in_a_thread(lambda: derivatives(program))
    assert got == derivatives(program)
