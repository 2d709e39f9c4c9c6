"""Models train bit for bit as without hooks, under every policy that loses nothing."""

from contextlib import nullcontext

import paddle
import pytest
from paddle import nn
from paddle_cases import bits

import tensorstash as ts
from benchmarks.models import Model
from benchmarks.models import paddle as of
from benchmarks.models.networks import GPT, ResNet, new

pytestmark = pytest.mark.filterwarnings("ignore:When training, we now always track")


class Loss(nn.Layer):
    """The loss of the output of a layer: the mean of squares, unless another function of output and input is given."""

    def __init__(self, net, loss=lambda y, x: y.square().mean()):
        super().__init__()
        self.net, self.loss = net, loss

    def forward(self, x):
        return self.loss(self.net(x), x)


def of_next_token(logits, tokens):
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def of_class(logits, images):
    return nn.functional.cross_entropy(logits, paddle.arange(len(images)))


class Recurrent(nn.Layer):
    """An LSTM and a GRU over one sequence."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LSTM(8, 16, num_layers=2, direction="bidirect"), nn.GRU(32, 8)

    def forward(self, x):
        return self.second(self.first(x)[0])[0]


def network(kind, **sizes):
    return new(of, kind, Model(framework="paddle", network="", batch=4, rate=0.0, optimizer="", depth=2, **sizes))


def gpt():
    net = network(GPT, width=32, heads=4, context=32, vocabulary=61)
    return Loss(net, of_next_token), [paddle.randint(0, 61, [3, 12])]


def resnet():
    return Loss(network(ResNet, width=8), of_class), [paddle.randn([4, 1, 16, 16])]


def lstm():
    return Loss(Recurrent()), [paddle.randn([3, 7, 8])]


def encoder():
    return Loss(nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1)), [paddle.randn([2, 6, 16])]


class SwiGLU(nn.Layer):
    def __init__(self, width=16, inner=40):
        super().__init__()
        self.norm = nn.LayerNorm(width, epsilon=1e-6)
        self.gate, self.up, self.down = nn.Linear(width, inner), nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def swiglu():
    return Loss(nn.Sequential(nn.Linear(16, 16), SwiGLU(), SwiGLU())), [paddle.randn([4, 6, 16])]


def mlp():
    # Settings that differ where all else is the same.
    layers = []
    for approximate, eps in ((False, 1e-5), (True, 1e-3), (False, 1e-3), (True, 1e-5)):
        layers += [nn.Linear(24, 24), nn.LayerNorm(24, epsilon=eps), nn.Linear(24, 24), nn.GELU(approximate)]
    return Loss(nn.Sequential(*layers, nn.Linear(24, 4))), [paddle.randn([8, 24])]


MODELS = {"gpt": gpt, "resnet": resnet, "lstm": lstm, "encoder": encoder, "swiglu": swiglu, "mlp": mlp}


def prepared(build):
    paddle.seed(7)
    model, inputs = build()
    model.train()
    state = {name: value.clone() for name, value in model.state_dict().items()}

    def gradients(around):
        paddle.seed(11)
        model.set_state_dict(state)
        model.clear_gradients()
        with around:
            loss = model(*inputs)
        loss.backward()
        return [bits(loss), *(bits(parameter.grad) for parameter in model.parameters())]

    return model, inputs, gradients


@pytest.mark.parametrize(
    "policy",
    [
        "keep",
        "cpu_offload",
        "compress",
        "disk_spill",
        "compress | disk_spill",
        "recompute",
        "recompute | compress:min_ratio=1",
    ],
)
@pytest.mark.parametrize("name", MODELS)
def test_a_lossless_policy_changes_no_bit(name, policy):
    _, _, gradients = prepared(MODELS[name])
    expected = gradients(nullcontext())
    stash = ts.stash(ts.parse(policy), framework="paddle", min_bytes=0)
    assert [gradients(stash) for _ in range(2)] == [expected] * 2
    stats = stash.stats()
    if policy != "recompute":  # CPU tensors are on the host already
        assert bool(stats.stashed.tensors) == (policy not in ("keep", "cpu_offload"))
    assert bool(stats.recomputed) == ("recompute" in policy and name != "lstm"), stats  # that is one operation
    assert not stats.refused
    assert stats.live.tensors == 0


@pytest.mark.parametrize("build", [gpt, resnet])
def test_weights_after_five_steps_with_blocks_computed_again_are_those_without(build):
    def trained(policy):
        paddle.seed(7)
        model, inputs = build()
        model.train()
        optimizer = paddle.optimizer.SGD(0.1, model.parameters())
        with ts.wrap(model, policy, min_bytes=0) as handle:
            for _ in range(5):
                model(*inputs).backward()
                optimizer.step()
                optimizer.clear_grad()
        return [bits(value) for value in model.state_dict().values()], set(handle.stats().blocks)

    expected, _ = trained("keep")
    assert trained("checkpoint | disk_spill") == (expected, {"checkpointed"})


@pytest.mark.parametrize("policy", ["checkpoint", "checkpoint:every=2 | compress"])
@pytest.mark.parametrize("build", [gpt, resnet])
def test_blocks_that_are_computed_again_change_no_bit(build, policy):
    model, _, gradients = prepared(build)

    def results():
        return gradients(nullcontext()), [bits(value) for value in model.state_dict().values()]

    expected = results()  # statistics, too, are counted once
    with ts.wrap(model, policy, min_bytes=0) as handle:
        for _ in range(3):
            assert results() == expected
    assert set(handle.stats().blocks) == {"checkpointed"}


def test_an_estimate_says_what_a_step_saves():
    model, _ = gpt()
    model.eval()
    tokens = paddle.randint(0, 61, [16, 32])
    found = ts.estimate(model, tokens)
    assert not found.is_imagined
    wrapped = ts.wrap(model, "disk_spill", budget="1GiB", min_bytes=0)
    for _ in range(2):
        model(tokens).backward()
    assert found.nbytes == pytest.approx(wrapped.stats().planned["kept"].nbytes, rel=0.05)
    assert "net.blocks.0.linear.0" in {row.module for row in found.rows}
