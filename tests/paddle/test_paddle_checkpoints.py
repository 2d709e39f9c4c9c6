"""Layers under ``checkpoint``: the gradients of Paddle's own ``recompute``, and no layer that cannot repeat."""

import random
from contextlib import nullcontext
from functools import partial

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.base.core import Generator
from paddle.distributed.fleet.utils import recompute
from paddle_cases import bits
from test_paddle_architectures import gpt, resnet

import tensorstash as ts
from tensorstash.policies.checkpoint import Checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:When training, we now always track")

CHECKPOINTED, ALREADY = "checkpointed", "left alone: the model checkpoints already"


class Block(nn.Layer):
    def __init__(self, width=16):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm(x)))))


class Does(Block):
    """A block that does something beside."""

    def __init__(self, act):
        super().__init__()
        self.act = act

    def forward(self, x):
        return self.act(self, super().forward(x))


class Calls(nn.Layer):
    """Calls its blocks in its own way."""

    def __init__(self, block, call, depth=3):
        super().__init__()
        self.blocks = nn.LayerList([block() for _ in range(depth)])
        self.call = call

    def forward(self, x):
        x = x * 1
        for block in self.blocks:
            x = self.call(block, x)
        return x


def network(block=Block, call=lambda block, x: block(x), depth=3):
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


def trained(model, loss_of, steps=5):
    """Train, and return the bits of every gradient and weight."""
    optimizer = paddle.optimizer.AdamW(0.01, parameters=model.parameters())
    paddle.seed(2)
    random.seed(3)
    np.random.seed(3)
    found = []
    for _ in range(steps):
        loss = loss_of(model)
        loss.backward()
        found += [None if weight.grad is None else bits(weight.grad) for weight in model.parameters()]
        optimizer.step()
        optimizer.clear_grad()
    return [*found, *(bits(value) for value in model.state_dict().values())]


def square(x):
    return lambda model: model(x).square().sum()


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
        results.append(trained(model, lambda model, inputs=inputs: model(*inputs), steps))
        assert handle is None or set(handle.stats().blocks) == {CHECKPOINTED}
    weights = len(model.parameters())
    assert [result[: steps * weights] for result in results] == [results[1][: steps * weights]] * 4
    assert results[2:] == [results[1]] * 2  # statistics, too, are counted once


@pytest.mark.parametrize("rest", ["", " | compress", " | disk_spill", " | recompute | compress"])
def test_only_what_goes_into_the_blocks_follows_the_rest_of_the_chain(x, rest):
    x.stop_gradient = False
    handle = ts.wrap(model := network(), f"checkpoint{rest}", min_bytes=0)
    assert trained(model, square(x), 1) == trained(network(), square(x), 1)
    stats = handle.stats()
    assert stats.blocks == {CHECKPOINTED: ("blocks.0", "blocks.1", "blocks.2")}
    assert stats.seen.tensors == 3
    assert stats.stashed.tensors == (3 if rest else 0)


def state(block, x):
    block.calls = getattr(block, "calls", 0) + 1
    return x * block.calls


def a_sum_of_its_own(block, x):
    block.total = getattr(block, "total", 0) + x.sum()
    return x.exp() * 1e-3


class Found:
    def __init__(self, x):
        self.x = x


def asks_for_gradients(block, x):
    if x.stop_gradient:
        return x
    (slope,) = paddle.grad(x.exp().sum(), x, retain_graph=True)
    return x + slope * 1e-3


@pytest.mark.parametrize(
    ("call", "act", "why"),
    [
        (None, state, "keeps a value of its own in calls"),
        (None, a_sum_of_its_own, "keeps a value of its own in total"),
        (None, asks_for_gradients, "computes gradients of its own"),
        (lambda block, x: block(x).x, lambda block, x: Found(x), "returns a Found"),
        (lambda block, x: block(x.add_(paddle.ones([1]))), None, ""),
    ],
    ids=["state", "sum", "gradients", "opaque", "written between"],
)
def test_a_block_that_cannot_be_repeated_is_left_to_the_rest_and_named(x, call, act, why):
    made = partial(network, partial(Does, act) if act else Block, *([call] if call else []))
    plain = trained(made(), square(x), 3)
    handle = ts.wrap(model := made(), "checkpoint | compress", min_bytes=0)
    with pytest.warns(ts.TensorStashWarning, match=f"not repeated, since each {why}") if why else nullcontext():
        assert trained(model, square(x), 3) == plain
    (treatment,) = handle.stats().blocks
    assert why in treatment


class Keeps(Does):
    """A block with state that its calls change in place, and whose output depends on it."""

    def __init__(self, state, act):
        super().__init__(act)
        self.state = self.first = state()


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


@pytest.mark.parametrize(
    ("state", "act"),
    [
        (dict, counts),
        (list, lists),
        (lambda: {"sum": paddle.zeros([16])}, accumulates),
        (lambda: np.zeros(3), writes_an_array),
        (lambda: [random.Random(5)], lambda block, x: x * block.state[0].random()),
        (lambda: np.random.default_rng(5), lambda block, x: x * float(block.state.random())),
        (Generator, lambda block, x: x * (1 + block.state.random() % 7)),
    ],
)
def test_the_state_of_a_block_advances_by_its_own_calls_alone(x, state, act):
    def made():
        model = network(partial(Keeps, state, act))
        for block in model.blocks if state is Generator else ():
            block.state.manual_seed(5)
        return model

    plain = trained(made(), square(x))
    handle = ts.wrap(model := made(), "checkpoint | compress", min_bytes=0)
    with pytest.warns(ts.TensorStashWarning, match="not repeated, since each keeps a value of its own in state"):
        assert trained(model, square(x)) == plain
    assert not handle.stats().blocks.get(CHECKPOINTED)
    assert all(block.state is block.first for block in model.blocks)


def test_a_block_that_does_not_draw_from_its_generator_is_checkpointed(x):
    made = partial(network, partial(Keeps, Generator, lambda block, x: x * 2))
    plain = trained(made(), square(x), 2)
    handle = ts.wrap(model := made(), "checkpoint", min_bytes=0)
    assert trained(model, square(x), 2) == plain
    assert set(handle.stats().blocks) == {CHECKPOINTED}


def test_hooks_of_others_see_each_call_as_without_but_for_the_second_one_of_backward(x):
    model, calls = network(), []
    model.blocks[1].up.register_forward_pre_hook(lambda layer, args: calls.append("pre"))
    model.blocks[1].up.register_forward_post_hook(lambda layer, args, output: calls.append("post"))
    ts.wrap(model, "checkpoint", min_bytes=0)
    loss = square(x)(model)
    assert calls == ["pre", "post"]
    loss.backward()
    assert calls == ["pre", "post"] * 2


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


@pytest.mark.parametrize(
    ("block", "call", "why"),
    [
        (Clamps, lambda block, x: block(x), "writes its weights in place"),
        (Writes, lambda block, x: block(x * 1), "writes its arguments in place"),
        (Appends, lambda block, x: block(x, []), "writes its arguments in place"),
        (Appends, lambda block, x: block(x, Seen()), "takes a Seen"),
    ],
)
def test_a_block_that_changes_its_arguments_is_left_to_the_rest(x, block, call, why):
    plain = trained(network(block, call), square(x), 2)
    handle = ts.wrap(model := network(block, call), "checkpoint | compress", min_bytes=0)
    with pytest.warns(ts.TensorStashWarning, match=why):
        assert trained(model, square(x), 2) == plain
    assert not handle.stats().blocks.get(CHECKPOINTED)


class Seen(list):
    pass


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
        (partial(Does, host_numbers), lambda block, x: block(x)),
        (Shapes, lambda block, x: block(x, mask=paddle.ones([1]))[1]["y"]),
        (Shapes, lambda block, x: block(x)[0] * 1),
        (lambda: nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1D(16), nn.ReLU()), lambda block, x: block(x)),
        (lambda: nn.TransformerEncoderLayer(16, 4, 32, 0.1), lambda block, x: block(x[None])[0]),
    ],
    ids=["host's numbers", "dictionary", "argument", "statistics", "encoder"],
)
def test_what_a_block_draws_and_returns_is_as_without(x, block, call, is_leaf):
    x.stop_gradient = not is_leaf
    plain = trained(network(block, call), square(x), 3)
    handle = ts.wrap(model := network(block, call), "checkpoint | compress", min_bytes=0)
    assert trained(model, square(x), 3) == plain
    assert set(handle.stats().blocks) == {CHECKPOINTED}


@pytest.mark.parametrize("is_frozen", [True, False])
def test_weights_get_gradients_where_the_input_has_none(x, is_frozen):
    def made():
        model = network(call=lambda block, x: block(x))
        for weight in model.blocks[0].parameters() if is_frozen else ():
            weight.stop_gradient = True
        return model

    plain = trained(made(), square(x), 2)
    handle = ts.wrap(model := made(), "checkpoint", min_bytes=0)
    assert trained(model, square(x), 2) == plain
    assert handle.stats().blocks[CHECKPOINTED]


@pytest.mark.parametrize("is_reentrant", [True, False])
@pytest.mark.parametrize("where", ["inside", "around"])
def test_a_model_that_recomputes_already_is_left_alone(x, where, is_reentrant):
    class Inside(Block):
        def forward(self, x):
            return recompute(super().forward, x, use_reentrant=is_reentrant)

    def made():
        around = partial(recompute, use_reentrant=is_reentrant)
        return network(Inside) if where == "inside" else network(call=lambda block, x: around(block, x))

    x.stop_gradient = False
    plain = trained(made(), square(x), 2)
    handle = ts.wrap(model := made(), "checkpoint | compress", min_bytes=0)
    assert trained(model, square(x), 2) == plain
    is_seen = where == "around" or is_reentrant  # the other kind shows nothing to hooks around it, and is done twice
    assert list(handle.stats().blocks) == [ALREADY if is_seen else CHECKPOINTED]


def test_a_gradient_asked_for_through_a_block_is_refused_and_leaves_weights_alone(x):
    x.stop_gradient = False
    ts.wrap(model := network(), "checkpoint", min_bytes=0)
    with pytest.raises(Exception, match="grad goes through a block"):
        paddle.grad(square(x)(model), [x])
    assert all(weight.grad is None for weight in model.parameters())
    square(x)(model).backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_what_is_no_training_goes_straight_through(x):
    handle = ts.wrap(model := network(), "checkpoint", min_bytes=0)
    with paddle.no_grad():
        model(x)
    model.eval()
    model(x)
    assert set(handle.stats().blocks) == {"not called yet"}
    before = [dict(vars(part)) for part in model.sublayers()]
    handle.remove()
    assert not any("_dygraph_call_func" in vars(part) for part in model.sublayers())
    assert len(before) == len(model.sublayers())


def test_a_model_that_is_in_eval_before_backward_repeats_the_call_of_training(x):
    def gradients(model):
        paddle.seed(2)
        loss = square(x)(model)
        model.eval()
        loss.backward()
        assert not any(part.training for part in model.sublayers())
        return [bits(weight.grad) for weight in model.parameters()]

    plain = gradients(network())
    ts.wrap(model := network(), "checkpoint | compress", min_bytes=0)
    assert gradients(model) == plain


def test_an_input_that_is_modified_before_backward_is_an_error_and_no_wrong_gradient(x):
    ts.wrap(model := network(), "checkpoint", min_bytes=0)
    held = []
    model.call = lambda block, x: (held.append(x), block(x))[1]
    loss = square(x)(model)
    held[1].add_(paddle.ones([1]))
    with pytest.raises(Exception, match=r"modified|version"):
        loss.backward()


@pytest.mark.parametrize("policy", ["auto", "checkpoint", "checkpoint | disk_spill"])
def test_a_budget_is_held_with_as_many_blocks_as_it_needs_and_settles(x, policy):
    model, budget = network(depth=6), 20 * 2**10
    plain = trained(network(depth=6), square(x), 6)
    handle = ts.wrap(model, policy, budget=budget, min_bytes=0, limits=ts.Limits(in_flight=0, ahead=0))
    found = []

    def loss_of(model):
        found.append({fate: len(names) for fate, names in handle.stats().blocks.items()})
        return square(x)(model)

    assert trained(model, loss_of, 6) == plain
    assert found[1] == {CHECKPOINTED: 6}
    assert found[4:] == [found[-1]] * 2
    assert handle.stats().peak_held <= budget
