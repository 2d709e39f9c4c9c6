"""Blocks under ``checkpoint``: results as without, the model as it was, and no block that cannot repeat."""

import copy
import operator
import pickle
import random
import weakref
from collections import deque
from contextlib import nullcontext
from functools import partial

import numpy as np
import paddle
import pytest
import torch
from paddle.base.core import Generator

import tensorstash as ts
from tensorstash.errors import ConfigError
from tests.frameworks.blocks import Blocks
from tests.frameworks.steps import bits

pytestmark = pytest.mark.filterwarnings("ignore:When training, we now always track")

CHECKPOINTED = "checkpointed"
BLOCKS = ("blocks.0", "blocks.1", "blocks.2")


@pytest.fixture
def blocks(framework):
    return Blocks(framework)


@pytest.fixture
def x(framework):
    return framework.batch()


@pytest.mark.parametrize("rest", ["", " | compress", " | disk_spill", " | recompute | compress"])
def test_only_what_goes_into_the_blocks_follows_the_rest_of_the_chain(framework, blocks, rest):
    stats = blocks.trained_alike(blocks.model, framework.batch(requires_grad=True), f"checkpoint{rest}")
    assert stats.blocks == {CHECKPOINTED: BLOCKS}
    assert stats.seen.tensors == 6
    assert stats.stashed.tensors == (6 if rest else 0)


def test_the_model_is_as_it_was_after_the_wrap(blocks, x):
    model = blocks.model()
    blocks.trained(model, x, 1)  # Paddle notes the first call
    before = blocks.attributes(model)
    for _ in range(2):
        handle = ts.wrap(model, "checkpoint | compress", min_bytes=0)
        assert not any("forward" in vars(part) for part in model.blocks)
        blocks.trained(model, x, 1)
        handle.remove()
        assert blocks.attributes(model) == before


def test_copies_are_checkpointed_and_pickles_are_not(framework, blocks, x):
    model = framework.network()
    plain = blocks.trained(framework.network(), x, 1)
    handle = ts.wrap(model, "checkpoint", min_bytes=0)
    twin = copy.deepcopy(model)
    assert blocks.trained(twin, x, 1) == plain
    assert handle.stats().blocks == {CHECKPOINTED: ("0", "1", "2")}
    again = pickle.loads(pickle.dumps(model))
    assert ts.wrapped(again) == ()
    assert blocks.trained(again, x, 1) == plain


@pytest.mark.parametrize("evaluates", [True, False])
def test_what_is_no_training_goes_straight_through(framework, blocks, x, evaluates):
    handle = ts.wrap(model := blocks.model(), "checkpoint", min_bytes=0)
    if evaluates:
        model.eval()
    with nullcontext() if evaluates else framework.no_grad():
        model(x)
    assert handle.stats().blocks == {"not called yet": BLOCKS}
    model.train()
    model(x)
    assert handle.stats().blocks == {CHECKPOINTED: BLOCKS}


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
    (
        "draws numbers from Python's random or NumPy's",
        None,
        lambda block, y: y * float(np.random.rand()),
        operator.call,
    ),
    ("returns a Found", None, lambda block, y: Found(y), lambda block, x: block(x).y),
]
UNREPEATABLE = {
    "torch": [
        *BOTH,
        ("writes its arguments in place", writes_unnoticed, None, lambda block, x: block(x * 1)),
    ],
    "paddle": BOTH,
}


@pytest.mark.parametrize(
    ("framework", "why", "before", "after", "call"),
    [(of, *row) for of in UNREPEATABLE for row in UNREPEATABLE[of]],
    indirect=["framework"],
)
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


def test_a_block_that_reads_a_small_buffer_that_it_writes_is_computed_again_as_it_was(blocks, x):
    def warms_up(block, x):
        with block.of.no_grad():
            block.calls.add_(block.calls * 0 + 1)
        return x * block.calls.clone() if float(block.calls[0]) > 1 else x

    def made():
        model = blocks.model(warms_up)
        for block in model.blocks:
            block.register_buffer("calls", blocks.lab.tensor(np.zeros(1, np.float32)))
        return model

    assert blocks.trained_alike(made, x).blocks == {CHECKPOINTED: BLOCKS}


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


def test_a_first_call_that_raises_leaves_the_random_numbers_that_it_has_drawn(blocks, x):
    fails = []

    def act(block, y):
        if fails:
            raise ArithmeticError(*fails)
        return y

    def after_a_failure(model):
        fails.append("the first call")
        blocks.lab.seed(4)
        with pytest.raises(ArithmeticError, match="the first call"):
            model(x)
        fails.clear()
        model(x).square().sum().backward()
        return bits(model.parameters())

    plain, model = after_a_failure(blocks.model(after=act)), blocks.model(after=act)
    handle = ts.wrap(model, "checkpoint", min_bytes=0)
    assert after_a_failure(model) == plain
    assert handle.stats().blocks == {CHECKPOINTED: BLOCKS}


def test_a_proof_that_is_interrupted_leaves_random_numbers_and_is_made_again(blocks, x):
    interrupts = iter([False, True])

    def act(block, y):
        if next(interrupts, False):
            raise KeyboardInterrupt
        return y

    model = blocks.model()
    blocks.lab.seed(4)
    model.blocks[0](x * 1)
    expected = blocks.lab.draw()
    handle = ts.wrap(model := blocks.model(after=act), "checkpoint", min_bytes=0)
    blocks.lab.seed(4)
    with pytest.raises(KeyboardInterrupt):
        model(x)
    assert blocks.lab.draw() == expected
    assert handle.stats().blocks == {"not called yet": BLOCKS}
    assert blocks.trained(model, x) == blocks.trained(blocks.model(), x)
    assert handle.stats().blocks == {CHECKPOINTED: BLOCKS}


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


def scales_by_key(block, x, found):
    ((key, value),) = found.items()
    return x * key[1] * value


def test_tensors_in_keys_and_values_of_dictionaries_are_those_of_the_call(blocks, x):
    def call(block, x):
        return block(x, {("by", x * 2): x.exp()})

    stats = blocks.trained_alike(lambda: blocks.model(scales_by_key, call=call), x)
    assert stats.blocks == {CHECKPOINTED: BLOCKS}


def test_a_model_without_blocks_is_an_error_that_says_how_to_name_them(framework, blocks, x):
    with pytest.raises(ConfigError, match=r"checkpoint\.blocks: the model has no "):
        ts.wrap(blocks.model().blocks[0], "checkpoint")
    handle = ts.wrap(model := blocks.model().blocks[0], "checkpoint:blocks=up")
    model(x)
    assert handle.stats().blocks == {CHECKPOINTED: ("up",)}


@pytest.mark.parametrize("policy", ["auto", "checkpoint", "checkpoint | disk_spill"])
def test_a_budget_is_held_with_as_many_blocks_as_it_needs_and_settles(blocks, x, policy):
    model, budget, found = blocks.model(depth=6), 20 * 2**10, []
    plain = blocks.trained(blocks.model(depth=6), x, 6)
    handle = ts.wrap(model, policy, budget=budget, min_bytes=0, limits=ts.Limits(in_flight=0, ahead=0))

    def look():
        found.append({fate: len(names) for fate, names in handle.stats().blocks.items()})

    assert blocks.trained(model, x, 6, look) == plain
    assert found[0] == {CHECKPOINTED: 6}
    assert found[3:] == [found[-1]] * 3
    assert sum(found[-1].values()) == 6
    assert handle.stats().peak_held <= budget
    if policy != "auto":  # whose recipes may be enough
        assert 0 < found[-1]["kept"] < 6
    if policy == "checkpoint":
        assert set(found[-1]) == {CHECKPOINTED, "kept"}


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

    stats = blocks.trained_alike(made, x, why="has hooks of .*test_checkpoints, which may count its calls")
    assert stats.blocks[CHECKPOINTED] == ("blocks.0", "blocks.2")


@pytest.mark.parametrize("has_statistics", [False, True])
def test_a_model_that_is_in_eval_before_backward_repeats_the_call_of_training(framework, blocks, x, has_statistics):
    def trained():
        model = blocks.model()
        for block in model.blocks if has_statistics else ():
            block.norm = framework.batch_norm()
        return model

    def results(model):
        blocks.lab.seed(2)
        model.blocks[1].drop.eval()
        loss = model(x).square().sum()
        model.eval()
        loss.backward()
        assert not any(part.training for _, part in blocks.lab.backend.named_modules(model))
        return [*bits(model.parameters()), *(value.tobytes() for value in blocks.lab.state(model).values())]

    plain, model = results(trained()), trained()
    ts.wrap(model, "checkpoint | compress", min_bytes=0)
    assert results(model) == plain


def test_weights_that_are_modified_before_backward_are_an_error_and_no_wrong_gradient(blocks, x):
    ts.wrap(model := blocks.model(), "checkpoint | compress", min_bytes=0)
    for _ in range(2):
        earlier, loss = (model(x).square().sum() for _ in range(2))
        loss.backward()
        blocks.lab.descend(model.blocks[1].up.bias, 0.01)
        with pytest.raises(Exception, match=r"blocks\.1 is computed again in backward, but its bias has been modified"):
            earlier.backward()


@pytest.mark.parametrize("is_replaced", [False, True])
@pytest.mark.parametrize("rows", [1, 2048])
def test_a_buffer_that_is_another_before_backward_is_as_it_was_or_an_error(blocks, x, rows, is_replaced):
    def trained(is_changed, policy):
        model = blocks.model(lambda block, x: x * block.scale[:1])
        for block in model.blocks:
            block.register_buffer("scale", blocks.lab.tensor(np.full((rows, 16), 2, np.float32)))
        with ts.wrap(model, policy, min_bytes=0):
            blocks.lab.seed(3)
            loss, block = model(x).square().sum(), model.blocks[1]
            if is_changed and is_replaced:
                block.scale = block.scale * 2
            elif is_changed:
                block.scale.add_(block.scale)
            loss.backward()
        return bits(parameter.grad for parameter in model.parameters())

    if rows == 1:
        assert trained(True, "checkpoint | compress") == trained(False, "keep")
    else:
        with pytest.raises(
            Exception, match=r"blocks\.1 is computed again in backward, but its scale has been modified"
        ):
            trained(True, "checkpoint | compress")
