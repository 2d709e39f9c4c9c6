"""Programs of which tensors are made again: as often as is needed, with the gradients and the errors that are due."""

from contextlib import nullcontext
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from memory_programs import Writing
from test_torch_recompute import stash
from torch import nn
from torch.nn import functional as F  # noqa: N812

from tensorstash.backends.torch.recipes.digests import device_digest
from tensorstash.backends.torch.recipes.producers import Producers
from tensorstash.errors import StashError
from tests.torch.conftest import are_same


def wide_out_of_narrow(around):
    leaf = torch.randn(64, 64, dtype=torch.bfloat16, requires_grad=True)
    with around:
        loss = (leaf @ leaf).float().square().sum()
    return torch.autograd.grad(loss, [leaf])


def saved_by_several(around):
    norm, layers = nn.LayerNorm(8), [nn.Linear(8, 8) for _ in range(3)]
    leaf = torch.ones(4, 8).cumsum(0).requires_grad_()
    with around, torch.autocast("cpu", torch.bfloat16):
        hidden = norm(leaf.sin())
        loss = sum(layer(hidden) for layer in layers).float().square().sum()
    del hidden
    loss.backward()
    return [leaf.grad]


def under_two_settings(around):
    leaf, weights = torch.randn(300, 250, requires_grad=True), [torch.randn(250, 4).requires_grad_() for _ in range(2)]
    before = torch.get_num_threads()
    try:
        with around:
            hidden = leaf.sin()
            products = [F.silu(hidden) @ weights[0]]  # which saves what the others are made of
            for threads, weight in enumerate(weights, 1):
                torch.set_num_threads(threads)
                products.append(F.gelu(hidden) @ weight)
        return torch.autograd.grad([each.sum() for each in products], weights)
    finally:
        torch.set_num_threads(before)


def needed_longer_than_by_who_saved_it(around):
    leaf, other = torch.randn(6, 6, requires_grad=True), torch.randn(6, 6, requires_grad=True)
    with around:
        hidden = F.gelu(leaf.sin())
        one, two = (hidden @ other).sum(), hidden.sum()
        del hidden
        two = two + leaf.sin().sum()  # the engine looks around
    two.backward()  # lets go of what gelu has saved
    return torch.autograd.grad(one, [other])


def made_of_equal_memories(around):
    leaf, weights = torch.randn(320, 250, requires_grad=True), [torch.randn(250, 4).requires_grad_() for _ in range(2)]
    buffers = [torch.from_numpy(each) for each in np.ones((2, 320, 250), np.float32)]  # aligned alike
    with around:
        hidden = F.gelu(leaf)
        losses = [((hidden * buffer) @ weight).sum() for buffer, weight in zip(buffers, weights, strict=True)]
    buffers[0].mul_(2)
    return torch.autograd.grad(losses[1], weights[1:])


def written_into(around, *, writes_first, times):
    leaf, weight = torch.randn(4, 8, requires_grad=True), torch.randn(8, 8).bfloat16().requires_grad_()
    with around:
        hidden = F.silu(leaf.sin())
        losses = [(hidden.bfloat16() @ weight).sum()]
        losses += [Writing.apply(hidden.bfloat16(), False).sum() for _ in range(times)]
    del hidden
    grads = []
    for loss in losses[::-1] if writes_first else losses:
        grads += torch.autograd.grad(loss, [leaf, weight][: 1 + (loss is losses[0])], retain_graph=True)
    return grads


def layers_with_an_eps_of_their_own(around):
    layers = [nn.LayerNorm(16, eps=eps) for eps in (1e-5, 1e-3, 1e-12, 1e-5)]
    leaf = hidden = (0.1 * torch.randn(8, 16)).requires_grad_()
    grads = []
    for _ in range(3):
        with around:
            for layer in layers:
                hidden = layer(0.1 * hidden.sin()) @ torch.eye(16, requires_grad=True)
            loss = hidden.square().sum()
        grads += torch.autograd.grad(loss, [leaf, *(layer.bias for layer in layers)])
        hidden = leaf
    return grads


def batch_norms_that_learn(around, *, dtype, is_permuted):
    norm = nn.BatchNorm1d(32).to(dtype)
    layer = nn.Linear(32, 8).to(dtype)
    given = torch.randn(32, 16, dtype=dtype).t()
    grads = []
    for _ in range(2):  # a weight of 1 changes no rounding
        with around:
            loss = layer(F.gelu(norm(given if is_permuted else given.contiguous()))).square().sum()
        grads += torch.autograd.grad(loss, list(norm.parameters()))
        with torch.no_grad():
            norm.weight.normal_()
            norm.bias.normal_()
    return grads


MADE = {
    "a wide tensor out of a narrow one is kept narrow": (wide_out_of_narrow, "narrow", 1, 1),
    "what several operations save of the same is made once": (saved_by_several, "cast(layer_norm)", 3, 1),
    "what is made under other settings is not the same": (under_two_settings, "gelu", 2, 2),
    "inputs outlive the operation that saved them": (needed_longer_than_by_who_saved_it, "gelu", 1, 1),
    "equal memories of the user are refused each for itself": (made_of_equal_memories, "mul(gelu)", 2, 1),
    "the eps of each layer is found once": (layers_with_an_eps_of_their_own, "layer_norm", 12, 12),
}
for dtype, is_permuted in product((torch.float32, torch.bfloat16), (True, False)):
    program = partial(batch_norms_that_learn, dtype=dtype, is_permuted=is_permuted)
    MADE[f"batch norms that learn, {dtype}, {is_permuted=}"] = program, "batch_norm", 2, 2
for first, times in product((True, False), (1, 2)):
    program = partial(written_into, writes_first=first, times=times)
    name = f"functions that write into it have their own, {first=}, {times=}"
    MADE[name] = program, "cast(silu)", 1 + times, 1 + times


@pytest.mark.parametrize(("program", "rule", "tensors", "loads"), MADE.values(), ids=MADE)
def test_what_is_made_again_and_how_often(program, rule, tensors, loads):
    def run(around):
        torch.manual_seed(0)
        return program(around)

    around = stash()
    assert are_same(run(around), run(nullcontext()))
    stats = around.stats()
    assert not [why for why in stats.refused if rule in why]
    assert (stats.recomputed[rule].tensors, stats.recomputed[rule].loads) == (tensors, loads)


FLOATS = {
    "one bit": lambda bits: bits[7].bitwise_xor_(1),
    "two signs": lambda bits: bits[3:5].bitwise_xor_(-(2**31)),
    "all signs": lambda bits: bits.bitwise_xor_(-(2**31)),
    "two places": lambda bits: bits.__setitem__([3, 900], bits[[900, 3]]),
    "the order": lambda bits: bits.copy_(bits.flip(0).clone()),
}


def zero(made):
    made[2, 4] = 0


EDITS = [
    *(
        pytest.param(torch.randn(1000), lambda made, edit=edit: edit(made.view(torch.int32)), id=name)
        for name, edit in FLOATS.items()
    ),
    *(
        pytest.param(torch.ones(3, 5, dtype=dtype), zero, id=str(dtype))
        for dtype in (torch.bool, torch.uint8, torch.bfloat16, torch.float64, torch.complex64)
    ),
]


@pytest.mark.parametrize(("made", "edit"), EDITS)
def test_a_digest_of_a_device_depends_on_every_bit_and_its_place(made, edit):
    before = device_digest(made)
    assert torch.equal(before, device_digest(made.clone()))
    edit(made)
    assert not torch.equal(before, device_digest(made))


def test_a_difference_on_a_device_is_raised_out_of_backward(monkeypatch):
    monkeypatch.setattr(Producers, "digest", lambda self, whole: device_digest(whole))

    def step(around, *, edits):
        leaf, weight = torch.randn(8, 16, requires_grad=True), torch.randn(16, 4, requires_grad=True)
        with around:
            hidden = F.gelu(leaf.sin())
            product = hidden * hidden
            if edits:
                product.data[5] = 0.5
            loss = (F.silu(product) @ weight).sum()
            del hidden, product
        loss.backward()

    around = stash()
    for _ in range(2):
        step(around, edits=False)
    with pytest.raises(StashError, match="came out different"):
        step(around, edits=True)
    step(around, edits=True)  # stored from now on
    step(around, edits=False)
