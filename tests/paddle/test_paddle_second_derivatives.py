"""Derivatives of derivatives, taken inside a scope or after it; Paddle saves tensors that have no memory, too."""

from contextlib import nullcontext

import paddle
import pytest
from paddle.autograd import saved_tensors_hooks
from paddle_cases import STASHES, bits, leaf, noise
from test_paddle_pylayer import Modified, product, square, tanh, tanh_and_exp

import tensorstash as ts
from tests.samples import pairwise

HELD = []


def held(x):
    HELD[:] = tanh_and_exp(x)
    return HELD[0] * HELD[1]


OPERATIONS = {
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
LAYERS = {
    "its input": lambda a, b: square(a) * b,
    "its input, made by an operation": lambda a, b: square(paddle.exp(a)) * b,
    "its inputs": lambda a, b: product(a, b),
    "its inputs, which are one": lambda a, b: product(a, a) * b,
    "its output": lambda a, b: tanh(a * b),
    "an output that is held": lambda a, b: held(a * b),
    "an output that is gone": lambda a, b: tanh(a) * 2.0 * b,
    "outputs, one after the other": lambda a, b: tanh(tanh(a) * b),
    "an output, transposed": lambda a, b: tanh(a.reshape([1, 12]).t()).reshape([3, 4]) * b,
    "several": lambda a, b: sum(tanh_and_exp(a * b)),
    "an output, by an apply that was taken before": lambda a, b, apply=Modified.apply: apply(a) * b,
}
PROGRAMS = {**OPERATIONS, **{f"a layer that saves {name}": program for name, program in LAYERS.items()}}
SCOPES = {
    **{name: lambda pair, stash=stash: stash() for name, stash in STASHES.items()},
    "a pair that copies": lambda pair: pair.hooks(),
    "a pair that forgets the history": lambda pair: pair.backend.hooks(lambda saved: saved.numpy(), paddle.to_tensor),
    "a pair of Paddle's": lambda pair: saved_tensors_hooks(lambda saved: saved.numpy(), paddle.to_tensor),
}


def derivatives(program, scope, is_inside=True):
    a, b = (leaf(noise(3, 4, seed=seed)) for seed in (0, 1))

    def first_and_second(out):
        return paddle.grad((out * out).sum(), [a, b], create_graph=True)

    with scope:
        out = program(a * 1.0, b * 1.0)
        first, second = first_and_second(out) if is_inside else (None, None)
    if not is_inside:
        first, second = first_and_second(out)
    (second * second).sum().backward()
    HELD.clear()
    return [bits(one) for one in (first, second, a.grad, b.grad)]


@pytest.mark.parametrize(("program", "scope", "is_inside"), pairwise(PROGRAMS, SCOPES, [True, False]))
@pytest.mark.usefixtures("never_freed")
def test_second_derivatives_are_bitwise_those_without_hooks(pair, program, scope, is_inside):
    expected = derivatives(PROGRAMS[program], nullcontext(), is_inside)
    assert derivatives(PROGRAMS[program], SCOPES[scope](pair), is_inside) == expected


def test_another_thread_takes_second_derivatives_without_a_scope_of_its_own(in_a_thread):
    with ts.stash(ts.Keep(), framework="paddle"):
        got = in_a_thread(lambda: derivatives(PROGRAMS["add"], nullcontext()))
    assert got == derivatives(PROGRAMS["add"], nullcontext())
