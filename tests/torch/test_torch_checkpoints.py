"""Blocks under ``checkpoint`` that only PyTorch has: results as without, and no block that cannot repeat."""

import random
import time
from functools import cache, partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.multiprocessing.reductions import StorageWeakRef
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

import tensorstash as ts
from tensorstash.errors import StashError
from tensorstash.testing.labs.torch import TorchLab
from tests.frameworks.blocks import Blocks
from tests.frameworks.steps import bits

CHECKPOINTED, ALREADY = "checkpointed", "left alone: the model checkpoints already"
BLOCKS = Blocks(SimpleNamespace(lab=TorchLab(), nn=nn, module=nn.Module, no_grad=torch.no_grad))


@pytest.fixture
def x():
    torch.manual_seed(1)
    return torch.randn(8, 16)


class Unwritten(torch.autograd.Function):
    """Saves memory that nobody has written, as flash attention does on CUDA."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, torch.tensor(time.perf_counter_ns(), dtype=torch.uint64))
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0].cos()


def test_a_random_state_that_nobody_has_written_does_not_tell_two_calls_apart(x):
    stats = BLOCKS.trained_alike(lambda: BLOCKS.model(after=lambda block, y: Unwritten.apply(y)), x)
    assert set(stats.blocks) == {CHECKPOINTED}


def test_a_block_that_reads_what_it_refers_to_is_checkpointed(x):
    """It refers to what is not its own, and to a tensor that somebody else made with a graph."""

    def reads(block, x):
        return x * block.scale + block.weights[0].mean() + block.lookup["by name"][1]

    def referring():
        model = BLOCKS.model(before=reads)
        for block in model.blocks:
            block.others, block.weights = [model, block], [block.up.weight]
            block.lookup = {"by name": (block.up, torch.arange(16)), "empty": np.zeros(()), "size": torch.Size([2])}
            block.unused = [random.Random(1), np.random.default_rng(2), np.random.RandomState(3), np.float32(4)]
            block.unused += [iter([5]), block.unused]
        for block in model.blocks:
            block.scale = model.blocks[0].up.bias[:1] * 2
        return model

    expected = BLOCKS.trained(referring(), x, 1)
    handle = ts.wrap(model := referring(), "checkpoint | compress", min_bytes=0)
    assert BLOCKS.trained(model, x, 1) == expected
    assert set(handle.stats().blocks) == {CHECKPOINTED}


def test_weights_that_a_first_call_makes_are_those_of_plain_training(x):
    def lazy():
        return BLOCKS.model(made=lambda block: nn.Sequential(nn.LazyLinear(16), nn.Dropout(0.1)))

    def made(model):
        torch.manual_seed(2)
        model(x).square().sum().backward()
        return [*bits(model.parameters()), *BLOCKS.trained(model, x)]

    plain, model = made(lazy()), lazy()
    handle = ts.wrap(model, "checkpoint", min_bytes=0)
    assert made(model) == plain
    assert set(handle.stats().blocks) == {CHECKPOINTED}


def around(use_reentrant):
    """Return what calls a block as PyTorch's checkpoints do."""
    return lambda block, x: checkpoint(block, x, use_reentrant=use_reentrant)


class Inside(nn.Module):
    """A block that checkpoints another one."""

    def __init__(self, block, use_reentrant):
        super().__init__()
        self.block, self.around = block, around(use_reentrant)

    def forward(self, x):
        return self.around(self.block, x)


def flagged(block):
    block.gradient_checkpointing = True
    return block


ALREADY_SO = {
    "flag": {"made": flagged},
    "wrapper": {"made": checkpoint_wrapper},
    "inside": {"made": lambda block: Inside(block, False)},
    "inside, reentrant": {"made": lambda block: Inside(block, True)},
    "around": {"call": around(False)},
}


@pytest.mark.parametrize("how", ALREADY_SO)
def test_a_model_that_checkpoints_already_is_left_alone(x, how):
    stats = BLOCKS.trained_alike(partial(BLOCKS.model, **ALREADY_SO[how]), x.requires_grad_())
    assert list(stats.blocks) == [ALREADY]


# The compiler looks at .grad of its inputs, which are no leaves between blocks, and PyTorch warns of that.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("how", ["blocks before", "blocks after", "model"])
def test_what_is_compiled_is_checkpointed_and_equal(x, how):
    torch.compiler.reset()
    plain, model = BLOCKS.trained(BLOCKS.model(), x), BLOCKS.model()

    def compile_blocks():
        for block in model.blocks:
            block.compile(backend="aot_eager")

    if how == "blocks before":
        compile_blocks()
    handle = ts.wrap(model, "checkpoint | compress", min_bytes=0)
    if how == "blocks after":
        compile_blocks()
    run = torch.compile(model, backend="aot_eager") if how == "model" else model
    assert BLOCKS.trained(run, x) == plain
    assert set(handle.stats().blocks) == {CHECKPOINTED}
    assert handle.stats().seen.tensors == 6


@pytest.mark.filterwarnings("ignore:.*smaller than min_bytes")
def test_a_budget_may_be_of_a_model_of_which_nothing_can_leave(x):
    model = BLOCKS.model()
    with ts.wrap(model, "auto", budget="1GiB") as handle:
        for _ in range(3):
            model(x.requires_grad_()).sum().backward()
    assert handle.stats().blocks


def test_auto_computes_blocks_again_under_a_budget_alone(x):
    models = BLOCKS.model(), nn.Sequential(nn.Linear(16, 16), nn.GELU())
    for model, budget in zip(models, (None, "1MiB"), strict=True):
        handle = ts.wrap(model, "auto", budget=budget)
        model(x)
        assert not handle.stats().blocks


class Adapter(nn.Module):
    """A low-rank path beside a frozen layer, as of PEFT."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.down, self.up = nn.Linear(inner.in_features, 2, bias=False), nn.Linear(2, inner.out_features, bias=False)

    def forward(self, x):
        return self.inner(x) + self.up(self.down(x))


def test_adapters_on_frozen_blocks_are_as_without(x):
    def adapted(block):
        block.requires_grad_(False).up = Adapter(block.up)
        return block

    stats = BLOCKS.trained_alike(lambda: BLOCKS.model(made=adapted), x)
    assert set(stats.blocks) == {CHECKPOINTED}


def test_noise_that_a_first_call_draws_once_for_all_is_drawn_once(x):
    def made():
        noise = cache(torch.randn)
        return BLOCKS.model(after=lambda block, y: y * noise(16, generator=None))

    assert set(BLOCKS.trained_alike(made, x).blocks) == {CHECKPOINTED}


def test_a_backward_from_what_a_proof_has_left_outside_of_the_block_is_an_error_that_says_so(x):
    losses = []
    ts.wrap(model := BLOCKS.model(after=lambda block, y: (losses.append(y.square().sum()), y)[1]), "checkpoint")
    model(x)
    with pytest.raises(StashError, match=r"block blocks\.\d was called twice for its proof"):
        sum(losses).backward()


def test_statistics_that_later_calls_write_alone_are_counted_once(x):
    def made():
        model = BLOCKS.model()
        for block in model.blocks:
            block.norm = nn.BatchNorm1d(16)
            block.norm.eval()
        return model

    def results(model):
        first = BLOCKS.trained(model, x, 1)
        model.train()
        return first, BLOCKS.trained(model, x, 2)

    expected = results(made())
    handle = ts.wrap(model := made(), "checkpoint", min_bytes=0)
    assert results(model) == expected
    assert handle.stats().blocks == {CHECKPOINTED: ("blocks.0", "blocks.1", "blocks.2")}


def test_gradients_are_accumulated_and_kept_graphs_run_twice(x):
    def accumulate(model):
        torch.manual_seed(2)
        for part in x.split(4):
            loss = model(part).square().sum()
            loss.backward(retain_graph=True)
            loss.backward()
        return bits(model.parameters())

    plain = accumulate(BLOCKS.model())
    ts.wrap(model := BLOCKS.model(), "checkpoint | compress", min_bytes=0)
    assert accumulate(model) == plain


def test_the_proof_holds_the_first_call_of_one_block_at_most(x):
    saved, alive = [], []

    def watched(block, x):
        alive.append(sum(not each.expired() for each in saved))
        hidden = x.exp()
        saved.append(StorageWeakRef(hidden.untyped_storage()))
        return hidden

    ts.wrap(model := BLOCKS.model(before=watched, depth=2), "checkpoint", min_bytes=0)
    model(x)
    assert alive == [0, 1, 1] * 2


def test_a_list_that_a_block_fills_in_later_calls_is_that_of_its_caller(x):
    def collects(block, x, found):
        block.calls += 1
        if float(block.calls) > 1:
            found.append(x.square().mean())
        return x

    def call(block, x):
        found = []
        return block(x, found) + sum(found)

    def made():
        model = BLOCKS.model(before=collects, call=call)
        for block in model.blocks:
            block.register_buffer("calls", torch.zeros(1))
        return model

    assert set(BLOCKS.trained_alike(made, x).blocks) == {"checkpointed"}


def test_a_block_that_modifies_what_it_has_saved_is_an_error_as_without(x):
    ts.wrap(model := BLOCKS.model(before=lambda block, x: x.exp().mul_(2)), "checkpoint | compress", min_bytes=0)
    with pytest.warns(ts.TensorStashWarning, match="modifies in place what it has saved"):
        loss = model(x.requires_grad_()).sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_blocks_of_tensors_of_a_subclass_are_checkpointed(x):
    def trained(policy):
        with ts.wrap(model := BLOCKS.model(), policy, min_bytes=0) as handle:
            model(TwoTensor(x, x.clone())).sum().backward()
        return [weight.grad.a.tolist() for weight in model.parameters()], set(handle.stats().blocks)

    assert trained("checkpoint") == (trained("keep")[0], {"checkpointed"})


@pytest.mark.parametrize(
    ("rare", "why"),
    [
        (torch._efficientzerotensor(3), "a tensor without memory"),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "'NestedIntNode'"),
    ],
)
def test_an_argument_that_cannot_be_compared_is_stored_and_named(x, rare, why):
    made = partial(
        BLOCKS.model, lambda block, x, rare: x + (rare * x.mean()).sum(), call=lambda block, x: block(x, rare)
    )
    with pytest.warns(ts.TensorStashWarning, match=f"cannot be compared .{why}"):
        BLOCKS.trained_alike(made, x)


def test_a_large_buffer_that_was_made_in_inference_mode_is_stored_and_named(x):
    def made():
        (model := BLOCKS.model()).blocks[0].register_buffer("large", torch.inference_mode()(torch.ones)(32768))
        return model

    BLOCKS.trained_alike(made, x, why="cannot be compared .Inference tensors")
