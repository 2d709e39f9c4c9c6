"""Layers under ``checkpoint`` that only Paddle has: results as without, and no layer that cannot repeat."""

import operator
from functools import partial
from types import SimpleNamespace

import paddle
import pytest
from paddle import nn
from paddle.base.core import Generator
from paddle.distributed.fleet.utils import recompute
from paddle_cases import leaf, noise

import tensorstash as ts
from tensorstash.errors import StashError
from tensorstash.testing.labs.paddle import PaddleLab
from tests.frameworks.blocks import Blocks
from tests.frameworks.steps import bits

pytestmark = pytest.mark.filterwarnings("ignore:When training, we now always track")

CHECKPOINTED, ALREADY = "checkpointed", "left alone: the model checkpoints already"


BLOCKS = Blocks(SimpleNamespace(lab=PaddleLab(), nn=nn, module=nn.Layer, no_grad=paddle.no_grad))


@pytest.fixture
def x():
    paddle.seed(1)
    return paddle.randn([8, 16])


class Shapes(nn.Layer):
    """Returns what a caller may want: its argument, an integer, nothing, and a dictionary."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x, mask=None):
        return x, {"y": self.block(x), "mask": mask}, paddle.argmax(x, -1), None


class Skips(nn.Layer):
    """Gives its arguments back in every call but the first, as stochastic depth may."""

    def __init__(self, block):
        super().__init__()
        self.block = block
        self.register_buffer("calls", paddle.zeros([1]))

    def forward(self, x, y):
        self.calls.add_(paddle.ones([1]))
        return (x, self.block(y)) if float(self.calls[0]) == 1 else (x, y)


class Looks(nn.Layer):
    """Multiplies by another factor where no gradients are recorded."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return self.block(x) * (2.0 if paddle.is_grad_enabled() else 3.0)


def normed(block):
    return nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1D(16), nn.ReLU())


class Recurrent(nn.Layer):
    """Has a buffer without memory."""

    def __init__(self, block):
        super().__init__()
        self.lstm = nn.LSTM(16, 16)

    def forward(self, x):
        return self.lstm(x[None])[0][0]


def halved(y):
    y.register_hook(lambda gradient: gradient * 0.5)
    return y


class Hooked(nn.Layer):
    def forward(self, x):
        return halved(x * 1)


RETURNS = {
    "hook of its caller": {"call": lambda block, x: halved(block(x))},
    "recurrent": {"made": Recurrent},
    "unused generator": {"state": Generator},
    "dictionary": {"made": Shapes, "call": lambda block, x: block(x, mask=paddle.ones([1]))[1]["y"]},
    "argument": {"made": Shapes, "call": lambda block, x: block(x)[0] * 1},
    "statistics": {"made": normed},
    "encoder": {
        "made": lambda block: nn.TransformerEncoderLayer(16, 4, 32, 0.1),
        "call": lambda block, x: block(x[None])[0],
    },
    "all arguments": {"made": Skips, "call": lambda block, x: sum(block(x, x * 2))},
    "argument that its caller writes": {"call": lambda block, x: block(x.add_(paddle.ones([1])))},
}


@pytest.mark.parametrize("is_leaf", [True, False])
@pytest.mark.parametrize("how", RETURNS)
def test_what_a_block_draws_and_returns_is_as_without(x, how, is_leaf):
    x.stop_gradient = not is_leaf
    stats = BLOCKS.trained_alike(partial(BLOCKS.model, **RETURNS[how]), x)
    assert set(stats.blocks) == {CHECKPOINTED}


@pytest.mark.parametrize(
    ("made", "call", "why"),
    [
        (lambda block: nn.Sequential(block, Hooked()), operator.call, "raises RuntimeError when it is called again"),
        (Looks, operator.call, "returns other values where no gradients are recorded"),
        (
            Shapes,
            lambda block, x: block(x, paddle.sparse.sparse_coo_tensor([[0]], [1.0], [2]))[1]["y"],
            "cannot be compared .a sparse tensor",
        ),
    ],
)
def test_a_block_that_another_call_would_harm_is_stored_and_named(x, made, call, why):
    stats = BLOCKS.trained_alike(partial(BLOCKS.model, made=made, call=call), x, why=why)
    assert not stats.blocks.get(CHECKPOINTED)


def test_a_view_stays_in_the_memory_of_its_base_when_it_is_compared(x):
    table = paddle.ones([16, 32])
    model = BLOCKS.model(
        lambda block, x: x + nn.functional.softmax(x)[:, 1:2] + block.state.sum(), None, lambda: table[:, :16]
    )
    ts.wrap(model, "checkpoint", min_bytes=0)
    model(x).sum().backward()
    table.zero_()
    assert float(model.blocks[0].state.sum()) == 0


def test_weights_get_gradients_where_the_input_has_none(x):
    def made():
        model = BLOCKS.model()
        for weight in model.blocks[0].parameters():
            weight.stop_gradient = True
        return model

    assert BLOCKS.trained_alike(made, x, "checkpoint").blocks[CHECKPOINTED]


@pytest.mark.parametrize("is_reentrant", [True, False])
@pytest.mark.parametrize("where", ["inside", "around"])
def test_a_model_that_recomputes_already_is_left_alone(x, where, is_reentrant):
    x.stop_gradient = False
    again = partial(recompute, use_reentrant=is_reentrant)

    class Inside(nn.Layer):
        def __init__(self, block):
            super().__init__()
            self.block = block

        def forward(self, x):
            return again(self.block, x)

    made = partial(BLOCKS.model, **({"made": Inside} if where == "inside" else {"call": again}))
    is_seen = where == "around" or is_reentrant  # the other kind shows nothing to hooks around it, and is done twice
    assert list(BLOCKS.trained_alike(made, x).blocks) == [ALREADY if is_seen else CHECKPOINTED]


def test_a_gradient_asked_for_through_a_block_is_refused_and_leaves_weights_alone():
    x = leaf(noise(8, 16))
    ts.wrap(model := BLOCKS.model(), "checkpoint", min_bytes=0)
    with pytest.raises(StashError, match="grad goes through a block"):
        paddle.grad(model(x).sum(), [x])
    assert all(weight.grad is None for weight in model.parameters())
    model(x).sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_an_input_that_is_modified_before_backward_is_an_error_and_no_wrong_gradient(x):
    held = []
    ts.wrap(model := BLOCKS.model(call=lambda block, x: (held.append(x), block(x))[1]), "checkpoint", min_bytes=0)
    loss = model(x).sum()
    held[1].add_(paddle.ones([1]))
    with pytest.raises(Exception, match=r"modified|version"):
        loss.backward()


def test_an_output_that_gets_no_gradient_does_no_harm(x):
    plain, model = (BLOCKS.model(before=lambda block, x: x.detach()) for _ in range(2))
    ts.wrap(model, "checkpoint", min_bytes=0)
    for each in (plain, model):
        BLOCKS.lab.seed(2)
        each(x).square().sum().backward()
    assert bits(model.blocks[2].parameters()) == bits(plain.blocks[2].parameters())
