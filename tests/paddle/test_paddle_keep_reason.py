"""What cannot be rebuilt exactly, or would save nothing, is kept; and the backend says why."""

import gc
from contextlib import nullcontext

import numpy as np
import paddle
import pytest
from paddle.base.framework import EagerParamBase
from paddle_cases import bits, leaf, noise

import tensorstash as ts
from tensorstash.testing.programs import lossless_policies


def reason_in(backend, tensor):
    """Return why the tensor is kept in a scope of its own: parameters are looked up again in each."""
    with backend.hooks(lambda tensor: None, lambda packed: None):
        return backend.keep_reason(tensor)


def test_views_of_parameters_that_come_go_and_move_are_recognised(backend):
    class FlatWeight(EagerParamBase):
        pass

    assert reason_in(backend, leaf(noise(4, 4)).t() * 1) is None
    weight = FlatWeight([4, 4], "float32")
    weight.set_value(np.ones((4, 4), np.float32))
    assert reason_in(backend, weight.t()) == "view of a parameter"
    other = paddle.create_parameter([4, 4], "float32")
    gc.freeze()  # as servers call it before they fork, it hides objects from every search of the collector
    assert reason_in(backend, other[1:]) == "view of a parameter"
    paddle.rand([4, 4])._share_buffer_to(weight)
    assert reason_in(backend, weight.t()) == "view of a parameter"
    view = other[1:]
    del other
    gc.collect()
    assert reason_in(backend, view) is None


def test_integer_masks_and_indices_that_claim_to_need_grad_are_stashed(pair):
    x = leaf(noise(6, 4))
    index = paddle.to_tensor([0, 2])
    with pair.hooks():
        inner = x * 1.0
        values, _ = paddle.topk(paddle.nn.functional.dropout(inner, 0.5), 2)
        y = values.sum() + inner[inner > 0.5].sum() + paddle.index_select(inner, index).sum()
    y.backward()
    assert not pair.kept
    assert (2,) in pair.copied


def test_distributed_tensors_are_kept_and_train(backend, pair):
    import paddle.distributed as dist

    mesh = dist.ProcessMesh([0], dim_names=["x"])
    a = dist.shard_tensor(paddle.rand([4, 4]), mesh, [dist.Shard(0)])
    a.stop_gradient = False
    inner = a * 1.0
    with pair.hooks():
        y = inner * inner
    y.sum().backward()
    assert np.array_equal(a.grad.numpy(), 2 * a.numpy())
    assert pair.kept["distributed"] == 2
    assert not pair.copied
    for tensor in (a, inner):
        assert backend.describe(tensor).startswith("float32(4, 4)")
        assert backend.version(tensor) == 0


def test_sparse_tensors_and_sparse_gradients_are_kept_and_train(backend, pair):
    values = leaf([1.0, 2.0])
    sparse = paddle.sparse.sparse_coo_tensor([[0, 1], [1, 2]], values, [4, 4], stop_gradient=False)
    assert backend.keep_reason(sparse) == "sparse layout"
    embedding = paddle.nn.Embedding(10, 3, sparse=True)
    with pair.hooks():
        y = paddle.sparse.sin(sparse)
        z = embedding(paddle.to_tensor([1, 2, 3]))
    y.to_dense().sum().backward()
    z.sum().backward()
    assert np.allclose(values.grad.numpy(), np.cos([1.0, 2.0]), atol=1e-6)
    assert embedding.weight.grad.is_selected_rows()


def test_an_uninitialised_tensor_is_kept_and_described(backend):
    nothing = paddle.Tensor()
    assert backend.keep_reason(nothing) == "no real memory"
    assert "no place" in backend.describe(nothing)


def test_weights_saved_by_layers_are_recognised(backend, pair):
    linear, norm, conv = paddle.nn.Linear(5, 5), paddle.nn.LayerNorm(5), paddle.nn.Conv2D(5, 5, 1)
    with pair.hooks():
        x = leaf(noise(2, 3, 5)) * 1
        y = conv((norm(linear(x)) @ linear.weight.t()).transpose([0, 2, 1]).unsqueeze(-1))
    y.sum().backward()
    assert pair.kept == {"parameter": 3, "view of a parameter": 1}
    assert not {(5, 5), (5, 5, 1, 1), (5,)} & set(pair.copied)


class OverBuffers(paddle.nn.Layer):
    """Batch norm whose running statistics are plain tensors, as a user's own layer may have them."""

    def __init__(self):
        super().__init__()
        self.weight = self.create_parameter([64], default_initializer=paddle.nn.initializer.Constant(1.0))
        self.register_buffer("_mean", paddle.zeros([64]))
        self.register_buffer("_variance", paddle.ones([64]))

    def forward(self, x):
        zero = paddle.zeros([64])
        return paddle.nn.functional.batch_norm(x, self._mean, self._variance, self.weight, zero, training=self.training)


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
