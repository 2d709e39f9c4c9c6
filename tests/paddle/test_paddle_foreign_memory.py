"""Memory that the graph did not make, and that is rewritten between two saves without a new version."""

from contextlib import nullcontext

import numpy as np
import paddle
import paddle.nn.functional as functional
import pytest
from paddle_cases import bits, leaf, noise

import tensorstash as ts
from tensorstash.errors import SavedTensorModifiedError
from tensorstash.policies.limits import Limits
from tensorstash.testing.harness import AT_ONCE
from tensorstash.testing.programs import lossless_policies


def by_copy(buffer, values):
    with paddle.no_grad():
        buffer.copy_(paddle.to_tensor(values), True)


WRITES = {
    "set_value": lambda buffer, values: buffer.set_value(values),
    "copy_": by_copy,
    "get_tensor().set": lambda buffer, values: buffer.get_tensor().set(values, paddle.CPUPlace()),
    "NumPy through DLPack": lambda buffer, values: np.copyto(np.from_dlpack(buffer.detach()), values),
}


def from_numpy(values):
    return paddle.Tensor(values.copy(), zero_copy=True)


@pytest.fixture(params=["any time", "at once"])
def limits(request):
    return Limits() if request.param == "any time" else AT_ONCE


def expected_gradient(first, second):
    """What each product has saved when it was computed."""
    x = leaf(noise(64))
    inner = x * 1.0
    (inner * paddle.to_tensor(first) + inner * paddle.to_tensor(second)).sum().backward()
    return bits(x.grad)


@pytest.mark.parametrize("made", [paddle.to_tensor, from_numpy])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_a_buffer_that_is_refilled_between_two_saves_is_two_contents(tmp_path, limits, write, made):
    first, second = noise(64, seed=1), noise(64, seed=2)
    captured, live = expected_gradient(first, second), expected_gradient(second, second)
    for name, policy in lossless_policies(tmp_path).items():
        if name in ("keep", "cpu_offload"):
            continue  # what stays where it is is read when backward asks for it, as without hooks
        x, buffer = leaf(noise(64)), made(first)
        with ts.stash(policy, min_bytes=0, limits=limits, framework="paddle"):
            inner = x * 1.0
            out = inner * buffer
            write(buffer, second)
            out = out + inner * buffer
        assert bits(buffer) == bits(paddle.to_tensor(second))
        try:
            out.sum().backward()
        except SavedTensorModifiedError:
            continue  # the write has left a new version
        # What does not shrink may stay where it is.
        assert bits(x.grad) in ((captured, live) if "compress" in name else (captured,)), name


@pytest.mark.filterwarnings("ignore:nothing was stashed:tensorstash.TensorStashWarning")  # offload, on the host
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_a_staging_buffer_may_be_refilled_while_an_older_loss_lives(tmp_path, limits, write):
    values = [noise(64, seed=seed) for seed in range(4)]
    for name, policy in lossless_policies(tmp_path).items():
        stash = ts.stash(policy, min_bytes=0, limits=limits, framework="paddle")
        buffer, losses = paddle.to_tensor(values[0]), []
        for batch in values:
            x = leaf(noise(64))
            write(buffer, batch)
            with stash:
                losses.append((x * 1.0 * buffer).sum())
            if len(losses) % 2:  # the others are never asked for, and live on
                losses[-1].backward()
                assert bits(x.grad) == bits(paddle.to_tensor(batch)), name


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
def test_batch_norm_that_trains_and_then_evaluates_in_one_graph(tmp_path, limits, made):
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
        scope = ts.stash(policy, min_bytes=0, limits=limits, framework="paddle")
        assert gradient(scope) == expected, name


def test_running_statistics_are_kept_and_say_why(backend):
    norm = paddle.nn.BatchNorm1D(4)
    with backend.hooks(lambda tensor: None, lambda packed: None):
        mean = norm.state_dict()["_mean"]
        assert backend.keep_reason(mean) == "parameter"
        assert backend.keep_reason(mean.detach().reshape([2, 2])) == "view of a parameter"
