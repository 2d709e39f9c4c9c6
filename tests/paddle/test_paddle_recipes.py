"""Tensors of Paddle that are made again: the same bits or none, and what the graph does not tell is stored."""

import sys
from contextlib import nullcontext
from functools import cache

import paddle
import pytest
from paddle import nn
from paddle.base import core
from paddle.distributed.fleet.utils import recompute
from paddle.nn import functional as F  # noqa: N812
from paddle_cases import allocated, bits, leaf, noise
from test_paddle_architectures import MODELS, prepared

import tensorstash as ts
from tensorstash.backends.paddle.nodes import node_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:When training, we now always track"),
    pytest.mark.filterwarnings("ignore:amp_guard can only be enabled"),
]


def stash(policy=None):
    return ts.stash(policy or ts.Recompute(), framework="paddle", min_bytes=1)


@cache
def weight(*shape):
    """A parameter that lives on: recipes take only parameters that somebody has."""
    return paddle.create_parameter(list(shape), "float32", default_initializer=nn.initializer.Uniform(0.5, 1.5))


def test_settings_do_not_outlive_their_node():
    # Freed nodes leave their addresses to later ones, of another operation or called behind the modules.
    x, y = leaf(noise(4, 16)), leaf(noise(2, 3, 4))

    def run(around):
        with around:
            for _ in range(3):
                F.gelu(x * 2).detach()
                F.layer_norm(y * 2, [3, 4]).detach()
            losses = [F.layer_norm(x * 2, 16).square().sum(), F.layer_norm(y * 2, [4]).square().sum()]
            for _ in range(20):
                F.gelu(x * 2, approximate=True).detach()
                losses.append((core.eager.ops.gelu(x * 2, False) @ weight(16, 4)).sum())
        return [bits(gradient) for gradient in paddle.grad(sum(losses), [x, y])]

    expected = run(nullcontext())
    for _ in range(6):
        around = stash()
        assert run(around) == expected
        stats = around.stats()
        assert not stats.refused
        assert stats.without_recipe["GeluGradNode does not tell its settings"].tensors == 20


def test_a_statistic_is_not_taken_for_another_of_its_operation():
    around = stash()
    with around:
        F.layer_norm(leaf(noise(4, 16)) * 2, 16).detach()
    assert around.stats().without_recipe["a statistic of LayerNormGradNode"].tensors == 2


def test_a_node_at_the_address_of_one_that_is_gone_is_not_taken_for_it():
    x, other = leaf(noise(6, 4)), leaf(noise(6, 4, seed=1))

    def run(around):
        with around:
            one, two = x.exp(), other.exp()
            loss, addresses = paddle.zeros([]), []
            for _ in range(16):
                label = one * 0.25 + two * 0.25
                addresses.append(node_of(label).node_ptr())
                loss = loss + F.binary_cross_entropy(F.sigmoid(x), label)  # it saves the label, without an edge to it
                del label
                hidden = one + two
                addresses.append(node_of(hidden).node_ptr())
                loss = loss + (F.relu(hidden) @ weight(4, 4)).sum()
                del hidden
        first = paddle.grad(loss, [x, other])
        return [bits(each) for each in first], len(set(addresses)) < len(addresses)

    around = stash()
    (found, is_met), (expected, _) = run(around), run(nullcontext())
    assert is_met, "no address was met twice, so that nothing was tried"
    assert found == expected
    assert not around.stats().refused


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("level", [None, "O1", "O2"])
def test_recomputed_blocks_and_autocast_keep_out_of_the_way(reentrant, level):
    block = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 8))

    def run(around):
        paddle.seed(6)
        block.clear_gradients()
        x = leaf(noise(4, 8))
        with around, paddle.amp.auto_cast(level=level, dtype="bfloat16") if level else nullcontext():
            hidden = block(F.silu(block[0](x)))
            loss = block(recompute(block, hidden, use_reentrant=reentrant)).sum()
        loss.backward()
        return [bits(x.grad), *(bits(each.grad) for each in block.parameters())]

    around = stash()
    assert run(around) == run(nullcontext())
    assert "silu" in around.stats().recomputed


def held(model, inputs, around):
    """Bytes of Paddle's own allocator that a forward leaves behind until its backward, and what are left after it."""
    for _ in range(2):
        before = allocated()
        with around:
            loss = model(*inputs)
        after = allocated()
        loss.backward()
        model.clear_gradients(set_to_zero=False)
        del loss
        left = allocated() - before
    return after - before, left


@pytest.mark.parametrize("name", ["swiglu", "gpt", "resnet", "encoder"])
def test_a_quarter_of_the_memory_is_gone(name, counting_only):
    """Print the figures with ``-rP``."""
    model, inputs, _ = prepared(MODELS[name])
    native, _ = held(model, inputs, nullcontext())
    around = stash()
    with_recipes, left = held(model, inputs, around)
    print(f"{name}: {with_recipes / native:.3f} of {native} bytes are left", file=sys.stderr)
    assert with_recipes < 0.75 * native
    assert left < 0.02 * native, "a graph is kept alive"
