"""Layers under ``checkpoint``: the gradients of Paddle's own ``recompute``, and no layer that cannot repeat."""

import operator
import random
from contextlib import nullcontext
from functools import partial

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.base.core import Generator
from paddle.distributed.fleet.utils import recompute
from paddle_cases import bits, leaf, noise
from test_paddle_architectures import gpt, resnet

import tensorstash as ts
from tensorstash.policies.checkpoint import Checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:When training, we now always track")

CHECKPOINTED, ALREADY = "checkpointed", "left alone: the model checkpoints already"


class Block(nn.Layer):
    """A block that does something beside.

    Args:
        act: what it does to its output.
        state: what its calls change in place, and its output depends on.
    """

    def __init__(self, act=lambda block, x: x, state=lambda: None):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(16), nn.Dropout(0.1)
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)
        self.act, self.state = act, state()
        self.first = self.state

    def forward(self, x):
        return self.act(self, x + self.drop(self.down(nn.functional.gelu(self.up(self.norm(x))))))


class Calls(nn.Layer):
    """Calls its blocks in its own way."""

    def __init__(self, block, call, depth):
        super().__init__()
        self.blocks = nn.LayerList([block() for _ in range(depth)])
        self.call = call

    def forward(self, x):
        x = x * 1
        for block in self.blocks:
            x = self.call(block, x)
        return x


def network(block=Block, call=operator.call, depth=3):
    paddle.seed(0)
    return Calls(block, call, depth)


@pytest.fixture
def x():
    paddle.seed(1)
    return paddle.randn([8, 16])


def by_hand(model):
    modules = dict(model.named_sublayers(include_self=True))
    for name in Checkpoint().chosen(modules):
        modules[name].forward = partial(recompute, modules[name].forward)
    return model


def trained(model, *inputs, steps=2):
    """Train, and return the bits of every gradient and weight."""
    optimizer = paddle.optimizer.AdamW(0.01, parameters=model.parameters())
    paddle.seed(2)
    random.seed(3)
    np.random.seed(3)
    found = []
    for _ in range(steps):
        model(*inputs).square().sum().backward()
        found += [None if weight.grad is None else bits(weight.grad) for weight in model.parameters()]
        optimizer.step()
        optimizer.clear_grad()
    return [*found, *(bits(value) for value in model.state_dict().values())]


def trained_alike(made, x, policy="checkpoint | compress", why=""):
    """Assert that a model trains as without its policy; return what has become of it."""
    handle = ts.wrap(model := made(), policy, min_bytes=0)
    with pytest.warns(ts.TensorStashWarning, match=why) if why else nullcontext():
        assert trained(model, x) == trained(made(), x)
    assert all(getattr(block, "state", None) is getattr(block, "first", None) for block in model.blocks)
    return handle.stats()


@pytest.mark.parametrize(("make", "steps"), [(gpt, 5), (resnet, 2)])
def test_gradients_and_weights_are_those_of_the_frameworks_own(make, steps):
    results = []
    for policy in ("by hand", None, "checkpoint", "checkpoint:every=2 | compress"):
        paddle.seed(0)
        model, inputs = make()
        model.train()
        if policy == "by hand":
            by_hand(model)
        handle = ts.wrap(model, policy, min_bytes=0) if policy not in ("by hand", None) else None
        results.append(trained(model, *inputs, steps=steps))
        assert handle is None or set(handle.stats().blocks) == {CHECKPOINTED}
    weights = len(model.parameters())
    assert [result[: steps * weights] for result in results] == [results[1][: steps * weights]] * 4
    assert results[2:] == [results[1]] * 2  # statistics, too, are counted once


@pytest.mark.parametrize("rest", ["", " | compress", " | disk_spill", " | recompute | compress"])
def test_only_what_goes_into_the_blocks_follows_the_rest_of_the_chain(x, rest):
    x.stop_gradient = False
    stats = trained_alike(network, x, f"checkpoint{rest}")
    assert stats.blocks == {CHECKPOINTED: ("blocks.0", "blocks.1", "blocks.2")}
    assert stats.seen.tensors == 6
    assert stats.stashed.tensors == (6 if rest else 0)


def counts_in_an_attribute(block, x):
    block.calls = getattr(block, "calls", 0) + 1
    return x * block.calls


def sums_in_an_attribute(block, x):
    block.total = getattr(block, "total", 0) + x.sum()
    return x.exp() * 1e-3


def asks_for_gradients(block, x):
    if x.stop_gradient:
        return x
    (slope,) = paddle.grad(x.exp().sum(), x, retain_graph=True)
    return x + slope * 1e-3


def counts(block, x):
    block.state["calls"] = block.state.get("calls", 0) + 1
    return x * (1 + 0.1 * block.state["calls"])


def lists(block, x):
    block.state.append(x.detach().mean())
    return x + sum(block.state) * 0.1


def accumulates(block, x):
    block.state["sum"].add_(x.detach().mean(0))
    return x * block.state["sum"].clone()


def writes_an_array(block, x):
    block.state[0] += 1
    return x * float(block.state.sum())


def seeded():
    generator = Generator()
    generator.manual_seed(5)
    return generator


class Writes(Block):
    def forward(self, x):
        return super().forward(x.scale_(2.0))


class Clamps(Block):
    def forward(self, x):
        with paddle.no_grad():
            for weight in self.parameters():
                weight.clip_(-0.1, 0.1)
        return super().forward(x)


class Appends(Block):
    def forward(self, x, seen=None):
        (seen if seen is not None else []).append(x)
        return super().forward(x)


class Found:
    def __init__(self, x):
        self.x = x


class Seen(list):
    pass


OWN = "keeps a value of its own in"
STATES = [
    (counts, dict),
    (lists, list),
    (accumulates, lambda: {"sum": paddle.zeros([16])}),
    (writes_an_array, lambda: np.zeros(3)),
    (lambda block, x: x * block.state[0].random(), lambda: [random.Random(5)]),
    (lambda block, x: x * float(block.state.random()), lambda: np.random.default_rng(5)),
    (lambda block, x: x * (1 + block.state.random() % 7), seeded),
]


@pytest.mark.parametrize(
    ("block", "call", "why"),
    [
        (partial(Block, counts_in_an_attribute), operator.call, f"{OWN} calls"),
        (partial(Block, sums_in_an_attribute), operator.call, f"{OWN} total"),
        *((partial(Block, *of_state), operator.call, f"{OWN} state") for of_state in STATES),
        (partial(Block, asks_for_gradients), operator.call, "computes gradients of its own"),
        (partial(Block, lambda block, x: Found(x)), lambda block, x: block(x).x, "returns a Found"),
        (Clamps, operator.call, "writes its weights in place"),
        (Writes, lambda block, x: block(x * 1), "writes its arguments in place"),
        (Appends, lambda block, x: block(x, []), "writes its arguments in place"),
        (Appends, lambda block, x: block(x, Seen()), "takes a Seen"),
    ],
)
def test_a_block_that_cannot_be_repeated_is_left_to_the_rest_and_named(x, block, call, why):
    (treatment,) = trained_alike(partial(network, block, call), x, why=f"not repeated, since each {why}").blocks
    assert why in treatment


def host_numbers(block, x):
    return x * (1 + random.random()) * float(np.random.rand())


class Shapes(Block):
    """Returns what a caller may want: its argument, an integer, nothing, and a dictionary."""

    def forward(self, x, mask=None):
        return x, {"y": super().forward(x), "mask": mask}, paddle.argmax(x, -1), None


@pytest.mark.parametrize("is_leaf", [True, False])
@pytest.mark.parametrize(
    ("block", "call"),
    [
        (partial(Block, state=Generator), operator.call),
        (partial(Block, host_numbers), operator.call),
        (Shapes, lambda block, x: block(x, mask=paddle.ones([1]))[1]["y"]),
        (Shapes, lambda block, x: block(x)[0] * 1),
        (lambda: nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1D(16), nn.ReLU()), operator.call),
        (lambda: nn.TransformerEncoderLayer(16, 4, 32, 0.1), lambda block, x: block(x[None])[0]),
    ],
    ids=["unused generator", "host's numbers", "dictionary", "argument", "statistics", "encoder"],
)
def test_what_a_block_draws_and_returns_is_as_without(x, block, call, is_leaf):
    x.stop_gradient = not is_leaf
    assert set(trained_alike(partial(network, block, call), x).blocks) == {CHECKPOINTED}


def test_a_block_whose_argument_is_written_by_its_caller_is_repeated_with_what_it_got(x):
    trained_alike(partial(network, call=lambda block, x: block(x.add_(paddle.ones([1])))), x)


def test_weights_get_gradients_where_the_input_has_none(x):
    def made():
        model = network()
        for weight in model.blocks[0].parameters():
            weight.stop_gradient = True
        return model

    assert trained_alike(made, x, "checkpoint").blocks[CHECKPOINTED]


def test_hooks_of_others_see_each_call_as_without_but_for_the_second_one_of_backward(x):
    model, calls = network(), []
    model.blocks[1].up.register_forward_pre_hook(lambda layer, args: calls.append("pre"))
    model.blocks[1].up.register_forward_post_hook(lambda layer, args, output: calls.append("post"))
    ts.wrap(model, "checkpoint", min_bytes=0)
    loss = model(x).sum()
    assert calls == ["pre", "post"]
    loss.backward()
    assert calls == ["pre", "post"] * 2


@pytest.mark.parametrize("is_reentrant", [True, False])
@pytest.mark.parametrize("where", ["inside", "around"])
def test_a_model_that_recomputes_already_is_left_alone(x, where, is_reentrant):
    x.stop_gradient = False
    again = partial(recompute, use_reentrant=is_reentrant)

    class Inside(Block):
        def forward(self, x):
            return again(super().forward, x)

    made = partial(network, Inside) if where == "inside" else partial(network, call=again)
    is_seen = where == "around" or is_reentrant  # the other kind shows nothing to hooks around it, and is done twice
    assert list(trained_alike(made, x).blocks) == [ALREADY if is_seen else CHECKPOINTED]


def test_a_gradient_asked_for_through_a_block_is_refused_and_leaves_weights_alone():
    x = leaf(noise(8, 16))
    ts.wrap(model := network(), "checkpoint", min_bytes=0)
    with pytest.raises(Exception, match="grad goes through a block"):
        paddle.grad(model(x).sum(), [x])
    assert all(weight.grad is None for weight in model.parameters())
    model(x).sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_what_is_no_training_goes_straight_through(x):
    handle = ts.wrap(model := network(), "checkpoint", min_bytes=0)
    with paddle.no_grad():
        model(x)
    model.eval()
    model(x)
    assert set(handle.stats().blocks) == {"not called yet"}
    handle.remove()
    assert not any("_dygraph_call_func" in vars(part) for part in model.sublayers())


def test_a_model_that_is_in_eval_before_backward_repeats_the_call_of_training(x):
    def gradients(model):
        paddle.seed(2)
        loss = model(x).sum()
        model.eval()
        loss.backward()
        assert not any(part.training for part in model.sublayers())
        return [bits(weight.grad) for weight in model.parameters()]

    plain = gradients(network())
    ts.wrap(model := network(), "checkpoint | compress", min_bytes=0)
    assert gradients(model) == plain


def test_an_input_that_is_modified_before_backward_is_an_error_and_no_wrong_gradient(x):
    held = []
    ts.wrap(model := network(call=lambda block, x: (held.append(x), block(x))[1]), "checkpoint", min_bytes=0)
    loss = model(x).sum()
    held[1].add_(paddle.ones([1]))
    with pytest.raises(Exception, match=r"modified|version"):
        loss.backward()


@pytest.mark.parametrize("policy", ["auto", "checkpoint", "checkpoint | disk_spill"])
def test_a_budget_is_held_with_as_many_blocks_as_it_needs_and_settles(x, policy):
    made, budget = partial(network, depth=6), 20 * 2**10
    handle = ts.wrap(model := made(), policy, budget=budget, min_bytes=0, limits=ts.Limits(in_flight=0, ahead=0))
    found = []
    model.register_forward_pre_hook(
        lambda *_: found.append({fate: len(names) for fate, names in handle.stats().blocks.items()})
    )
    assert trained(model, x, steps=6) == trained(made(), x, steps=6)
    assert found[1] == {CHECKPOINTED: 6}
    assert found[4:] == [found[-1]] * 2
    assert handle.stats().peak_held <= budget
