"""Models train bit for bit as without hooks, under every policy that loses nothing."""

from contextlib import nullcontext

import paddle
import pytest
from paddle import nn
from paddle_cases import bits

import tensorstash as ts

pytestmark = pytest.mark.filterwarnings("ignore:When training, we now always track")


class Attention(nn.Layer):
    """Hand-written, over views of one projection."""

    def __init__(self, width, heads):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads = heads

    def forward(self, x):
        batch, length, width = x.shape
        size = width // self.heads
        parts = self.qkv(x).reshape([batch, length, 3, self.heads, size]).unbind(axis=2)
        q, k, v = (part.transpose([0, 2, 1, 3]) for part in parts)
        scores = (q @ k.transpose([0, 1, 3, 2])) * size**-0.5
        masked = paddle.where(paddle.tril(paddle.ones([length, length], "bool")), scores, paddle.full([], -1e9))
        y = nn.functional.dropout(nn.functional.softmax(masked, -1), 0.1, training=self.training) @ v
        return self.out(y.transpose([0, 2, 1, 3]).reshape([batch, length, width]))


class Block(nn.Layer):
    def __init__(self, width, heads):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate=True), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class GPT(nn.Layer):
    def __init__(self, vocabulary=61, width=32, heads=4):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(32, width)
        self.blocks = nn.LayerList([Block(width, heads) for _ in range(2)])
        self.norm = nn.LayerNorm(width)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(paddle.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.tokens.weight.t()  # tied weights
        return nn.functional.cross_entropy(logits[:, :-1].reshape([-1, 61]), ids[:, 1:].reshape([-1]))


class Loss(nn.Layer):
    """The loss of what a layer returns: the mean of squares, if nothing else is said."""

    def __init__(self, net, loss=lambda y: y.square().mean()):
        super().__init__()
        self.net, self.loss = net, loss

    def forward(self, x):
        return self.loss(self.net(x))


class Recurrent(nn.Layer):
    """An LSTM and a GRU over one sequence."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LSTM(8, 16, num_layers=2, direction="bidirect"), nn.GRU(32, 8)

    def forward(self, x):
        return self.second(self.first(x)[0])[0]


def gpt():
    return GPT(), [paddle.randint(0, 61, [3, 12])]


def resnet():
    labels = paddle.to_tensor([1, 0, 9, 4])
    net = paddle.vision.models.resnet18(num_classes=10)
    return Loss(net, lambda y: nn.functional.cross_entropy(y, labels)), [paddle.randn([4, 3, 32, 32])]


def lstm():
    return Loss(Recurrent()), [paddle.randn([3, 7, 8])]


def encoder():
    return Loss(nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1)), [paddle.randn([2, 6, 16])]


MODELS = {"gpt": gpt, "resnet18": resnet, "lstm": lstm, "encoder": encoder}


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


@pytest.mark.parametrize("policy", ["keep", "cpu_offload", "compress", "disk_spill", "compress | disk_spill"])
@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS.keys())
def test_a_lossless_policy_changes_no_bit(build, policy):
    _, _, gradients = prepared(build)
    expected = gradients(nullcontext())
    stash = ts.stash(ts.parse(policy), framework="paddle", min_bytes=0)
    assert gradients(stash) == expected
    stats = stash.stats()
    on_host = policy in ("keep", "cpu_offload")  # where CPU tensors already are
    assert (stats.stashed.tensors == 0) == on_host
    assert stats.live.tensors == 0


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
    assert "blocks.0.mlp.0" in {row.module for row in found.rows}
