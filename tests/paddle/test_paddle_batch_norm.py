"""Statistics of batch norm, which the graph did not make and which are rewritten between two saves."""

from contextlib import nullcontext

import paddle
import paddle.nn.functional as functional
import pytest
from paddle_cases import bits, leaf, noise

import tensorstash as ts
from tensorstash.testing.programs import lossless_policies


class OverBuffers(paddle.nn.Layer):
    """Batch norm whose running statistics are plain tensors, as a user's own layer may have them."""

    def __init__(self):
        super().__init__()
        self.weight = self.create_parameter([64], default_initializer=paddle.nn.initializer.Constant(1.0))
        self.register_buffer("_mean", paddle.zeros([64]))
        self.register_buffer("_variance", paddle.ones([64]))

    def forward(self, x):
        zero = paddle.zeros([64])
        return functional.batch_norm(x, self._mean, self._variance, self.weight, zero, training=self.training)


@pytest.mark.filterwarnings("ignore:When training, we now always track")
@pytest.mark.parametrize("made", [lambda: paddle.nn.BatchNorm1D(64), OverBuffers], ids=["layer", "buffers"])
def test_batch_norm_that_trains_and_then_evaluates_in_one_graph(tmp_path, made):
    def gradient(scope):
        norm, x = made(), leaf(noise(8, 64))
        with scope:
            inner = x * 1.0
            norm.train()
            trained = norm(inner)
            norm.eval()
            evaluated = norm(inner)
            loss = (trained + evaluated * evaluated).sum()
        loss.backward()
        return bits(x.grad), bits(norm.weight.grad), bits(norm.state_dict()["_mean"])

    expected = gradient(nullcontext())
    for name, policy in lossless_policies(tmp_path).items():
        scope = ts.stash(policy, min_bytes=0, framework="paddle")
        assert gradient(scope) == expected, name


def test_running_statistics_are_kept_and_say_why(backend):
    norm = paddle.nn.BatchNorm1D(4)
    with backend.hooks(lambda tensor: None, lambda packed: None):
        mean = norm.state_dict()["_mean"]
        assert backend.keep_reason(mean) == "parameter"
        assert backend.keep_reason(mean.detach().reshape([2, 2])) == "view of a parameter"
