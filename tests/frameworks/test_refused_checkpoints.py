"""Blocks that ``checkpoint`` cannot repeat: left to the rest of the chain, with the reason."""

import operator
import random
import weakref
from collections import deque
from functools import partial

import numpy as np
import paddle
import pytest
import torch
from paddle.base.core import Generator

import tensorstash as ts
from tests.frameworks.blocks import BLOCKS, CHECKPOINTED


def counts(block, y):
    block.calls = getattr(block, "calls", 0) + 1
    return y * block.calls


def sums(block, y):
    block.total = getattr(block, "total", 0) + y.sum()
    return y.exp() * 1e-3


class Cache(list):
    """No list, and not known to stay as it is."""


class Found:
    def __init__(self, y):
        self.y = y


def appends(block, x, seen):
    seen.append(x)
    return x


def replaces(block, x, seen):
    seen[0] = x * 2
    return x


def writes_unnoticed(block, x):
    x.data.mul_(0.5)
    return x


def differentiates(block, y):
    if not block.of.lab.requires_grad(y):
        return y
    (slope,) = block.of.lab.grad(y.exp().sum(), [y])
    return y + slope * 1e-3


def clamps(block, x):
    with block.of.no_grad():
        for weight in block.parameters():
            weight.clip_(-0.1, 0.1)
    return x


def reads_a_large_codebook(block, x):
    with block.of.no_grad():
        block.codes.add_(x.detach().mean(0))
    return x * block.codes[0].clone()


CALLED = weakref.WeakSet()


def warms_up(block, x):
    factor = 2.0 if block in CALLED else 3.0
    CALLED.add(block)
    return x * factor


def takes_turns(block, y):
    block.turn = "odd" if getattr(block, "turn", "even") == "even" else "even"
    return y * len(block.turn)


def dives(block, x):
    block.depth = getattr(block, "depth", 0) + 1
    return x


def surfaces(block, y):
    y = (y * block.depth).exp() * 1e-3
    block.depth -= 1
    if not block.depth:
        del block.depth
    return y


BOTH = [
    ("keeps a value of its own in depth until it returns", dives, surfaces, operator.call),
    ("keeps a value of its own in turn", None, takes_turns, operator.call),
    ("keeps a value of its own in calls", None, counts, operator.call),
    ("keeps a value of its own in total", None, sums, operator.call),
    ("computes gradients of its own", None, differentiates, operator.call),
    ("saves other values", warms_up, None, operator.call),
    ("writes its large buffers in place", reads_a_large_codebook, None, operator.call),
    ("writes its weights in place", clamps, None, operator.call),
    ("writes its arguments in place", lambda block, x: x.tanh_(), None, lambda block, x: block(x * 1)),
    ("writes its arguments in place", appends, None, lambda block, x: block(x, [])),
    ("writes its arguments in place", replaces, None, lambda block, x: block(x, [x * 3])),
    ("takes a Cache", appends, None, lambda block, x: block(x, Cache())),
    ("draws numbers from Python's random", None, lambda block, y: y * (1 + random.random()), operator.call),
    ("draws numbers from Python's random or NumPy's", None, lambda block, y: y * np.random.random(), operator.call),
    ("returns a weight", None, lambda block, y: (y, block.up.weight), lambda block, x: block(x)[0]),
    ("returns a Found", None, lambda block, y: Found(y), lambda block, x: block(x).y),
]
UNREPEATABLE = [(of, *row) for of in ("torch", "paddle") for row in BOTH]
UNREPEATABLE += [("torch", "writes its arguments in place", writes_unnoticed, None, lambda block, x: block(x * 1))]


@pytest.mark.parametrize(("framework", "why", "before", "after", "call"), UNREPEATABLE, indirect=["framework"])
def test_a_block_that_cannot_be_repeated_is_left_to_the_rest_and_named(blocks, x, why, before, after, call):
    def made():
        model = blocks.model(before, after, call=call)
        for block in model.blocks:
            block.register_buffer("codes", blocks.lab.tensor(np.zeros((2048, 16), np.float32)))
        return model

    stats = blocks.trained_alike(made, x, why=f"not repeated, since each {why}")
    assert not stats.blocks.get(CHECKPOINTED)
    assert any(why in treatment for treatment in stats.blocks)
    assert why in stats.advice
    assert stats.stashed.tensors > 3


def test_a_block_that_raises_when_it_is_called_again_is_stored_and_named(blocks, x):
    fails = iter([False, True])

    def act(block, y):
        if next(fails, False):
            raise IndexError
        return y

    model = blocks.model(after=act)
    with (
        ts.wrap(model, "checkpoint") as handle,
        pytest.warns(ts.TensorStashWarning, match="raises IndexError when it is"),
    ):
        model(x).sum().backward()
    assert list(handle.stats().blocks.values()) == [BLOCKS]


def counts_in(block, y):
    block.state["seen"]["calls"] = block.state["seen"].get("calls", 0) + 1
    return y * (1 + 0.1 * block.state["seen"]["calls"])


def lists(block, y):
    block.up.state.append(y.detach().mean())
    return y + sum(block.state) * 0.1


def adds(block, y):
    block.state.add(len(block.state))
    return y * (1 + 0.1 * len(block.state))


def counts_around(block, y):
    block.state[0] += 1
    return y * block.state[0]


def accumulates(block, y):
    block.state[0].add_(y.detach().mean(0))
    return y * block.state[0].clone()


def writes_an_array(block, y):
    block.state[0] += 1
    return y * float(block.state.sum())


def a_tensor_beside_its_array(block, y):
    block.state[0][0] += 1
    return y * block.state[1].clone().float()


def draws_a_tensor(block, y):
    return y * torch.rand(y.shape, generator=block.state[0][1])


def itself():
    state = [0]
    state.append(state)
    return state


def with_an_alias():
    array = np.ones(1)
    return array, torch.from_numpy(array)


def seeded_in_paddle():
    generator = Generator()
    generator.manual_seed(5)
    return generator


STATES = {
    "both": [
        (lambda: {"seen": {}}, counts_in),
        (list, lists),
        (partial(deque, maxlen=2), lists),
        (set, adds),
        (itself, counts_around),
        (lambda: np.zeros(3), writes_an_array),
        (lambda: random.Random(5), lambda block, y: y * block.state.random()),
        (lambda: {"a": random.Random(5)}, lambda block, y: y * block.state["a"].random()),
        (lambda: [np.random.default_rng(5)], lambda block, y: y * float(block.state[0].random())),
        (lambda: np.random.RandomState(5), lambda block, y: y * float(block.state.rand())),
    ],
    "torch": [
        (lambda: [torch.zeros(16)], accumulates),
        (with_an_alias, a_tensor_beside_its_array),
        (lambda: [("a", torch.Generator().manual_seed(5))], draws_a_tensor),
    ],
    "paddle": [
        (lambda: [paddle.zeros([16])], accumulates),
        (seeded_in_paddle, lambda block, y: y * (1 + block.state.random() % 7)),
    ],
}


@pytest.mark.parametrize(
    ("framework", "state", "act"),
    [(of, *row) for of in ("torch", "paddle") for row in (*STATES["both"], *STATES[of])],
    indirect=["framework"],
)
def test_the_state_of_a_block_advances_by_its_own_calls_alone(blocks, x, state, act):
    refused = "not repeated, since each keeps a value of its own in state"
    stats = blocks.trained_alike(lambda: blocks.model(None, act, state), x, why=refused)
    assert not stats.blocks.get(CHECKPOINTED)


def test_a_block_whose_state_cannot_be_compared_is_called_once(blocks, x, tmp_path):
    def logs(block, y):
        block.state["to"].write("called\n")
        return y

    with (tmp_path / "log").open("a") as log:
        refused = "not repeated, since each holds state that cannot be compared .*TextIOWrapper"
        stats = blocks.trained_alike(lambda: blocks.model(None, logs, lambda: {"to": log}), x, why=refused)
    assert not stats.blocks.get(CHECKPOINTED)
    assert len((tmp_path / "log").read_text().splitlines()) == 2 * 2 * 3  # twice two steps of three blocks


@pytest.mark.parametrize(("before", "after"), [(None, counts), (warms_up, None)], ids=["first", "second"])
def test_blocks_like_one_that_was_refused_are_stored_from_their_first_call(framework, blocks, before, after):
    x = framework.batch(requires_grad=True)

    def seen(depth, policy):
        model = blocks.model(before, after, depth=depth)
        with ts.wrap(model, policy, min_bytes=0) as handle:
            model(x).square().sum().backward()
        return handle.stats().seen

    with pytest.warns(ts.TensorStashWarning, match="not repeated"):
        assert seen(3, "checkpoint | compress") == seen(2, "compress")


def test_a_block_with_hooks_of_others_is_left_to_the_rest_and_named(blocks, x):
    def made():
        calls = []

        def hook(layer, inputs, output):
            calls.append(layer)
            return output * (1 + len(calls))

        model = blocks.model()
        layer = model.blocks[1].up
        (getattr(layer, "register_forward_hook", None) or layer.register_forward_post_hook)(hook)
        return model

    stats = blocks.trained_alike(made, x, why="has hooks of .*test_refused_checkpoints, which may count its calls")
    assert stats.blocks[CHECKPOINTED] == ("blocks.0", "blocks.2")
