"""Compiled programs hide what they save from hooks; the backend says so."""

import warnings

import paddle
import pytest

from tensorstash.backends.paddle.repairs.surroundings import StaticGraphWarning


class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.inner = paddle.nn.Linear(3, 3)

    def forward(self, x):
        return paddle.tanh(self.inner(x))


@pytest.mark.filterwarnings("ignore:Tensor do not have 'place'")
def test_a_compiled_program_inside_hooks_warns_and_outside_does_not(pair):
    compiled = paddle.jit.to_static(Net(), full_graph=True)
    x = paddle.rand([2, 3])
    x.stop_gradient = False
    with pytest.warns(StaticGraphWarning, match="to_static"), pair.hooks():
        y = compiled(x)
    y.sum().backward()
    assert x.grad is not None
    assert not pair.copied
    with warnings.catch_warnings():
        warnings.simplefilter("error", StaticGraphWarning)
        compiled(x)
