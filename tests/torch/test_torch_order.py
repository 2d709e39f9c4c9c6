"""The order in which backward will ask is read off the graph: the first step reads ahead as well as later ones."""

import gc

import pytest
import torch
from architectures import ARCHITECTURES
from torch import nn

import tensorstash as ts
from tensorstash.backends.torch.backend import TorchBackend
from tensorstash.engine.prefetch import Prefetcher


def gru():
    cell, x = nn.GRUCell(8, 8), torch.randn(6, 4, 8)

    def loss_of(cell):
        hidden = torch.zeros(4, 8)
        for step in x:
            hidden = cell(step, hidden)
        return hidden.square().sum()

    return cell, loss_of


def encoder():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    x = torch.randn(2, 5, 16)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), lambda model: model(x).square().mean()


def branches():
    model = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
    x = torch.randn(4, 8)

    def loss_of(model):
        left, right = nn.functional.gelu(model[0](x)), nn.functional.silu(model[1](x))
        return ((left * right).sum() + right.exp().sum() * left.mean()).square()

    return model, loss_of


@pytest.fixture
def foretold_and_asked(monkeypatch):
    """Return what is foretold at each first request, operation by operation, and the order of all requests."""
    foretold, asked = [], []
    known, known_order = Prefetcher.asked, TorchBackend.upcoming

    def upcoming(self, is_ours):
        operations = known_order(self, is_ours)
        foretold.append([{each.payload.index for one in handles for each in one.asks()} for handles in operations])
        return operations

    def record(self, requests, index, tell):
        asked.append(index)
        known(self, requests, index, tell)

    monkeypatch.setattr(Prefetcher, "asked", record)
    monkeypatch.setattr(TorchBackend, "upcoming", upcoming)
    return foretold, asked


def in_turn(operations, asked):
    """Return what was asked for, cut where the operations would end."""
    requests = iter(asked)
    return [{index for _, index in zip(operation, requests, strict=False)} for operation in operations]


def backward(build, policy="disk_spill"):
    torch.manual_seed(0)
    model, loss_of = build()
    model.train()
    with ts.stash(policy, framework="torch", min_bytes=0):
        loss = loss_of(model)
    loss.backward()


@pytest.mark.parametrize("build", [*ARCHITECTURES, gru, encoder, branches])
def test_the_first_backward_asks_in_the_order_of_the_graph(build, foretold_and_asked):
    foretold, asked = foretold_and_asked
    backward(build)
    (operations,) = foretold
    assert in_turn(operations, asked) == operations


@pytest.mark.parametrize("build", ARCHITECTURES[:4])
def test_what_a_recipe_needs_is_expected_where_its_tensor_is_asked_for(build, foretold_and_asked):
    foretold, asked = foretold_and_asked
    backward(build, ts.Recompute() | ts.DiskSpill())
    assert len(foretold) == 1
    known = set()
    operations = []
    for indices in foretold[0]:
        operations.append(indices - known)
        known |= indices
    first = list(dict.fromkeys(asked))
    assert len(first) > 5
    assert in_turn(operations, first) == operations


def test_a_graph_that_changes_with_every_step_is_foretold_at_every_step(foretold_and_asked):
    foretold, asked = foretold_and_asked
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
    stash = ts.stash("disk_spill", framework="torch", min_bytes=0)
    for step in range(1, 6):
        asked.clear()
        with stash:
            x = torch.ones(3, 8)
            for layer in layers[: step % 4 + 1]:
                x = layer(x).sin() * (x + step).tanh()
            loss = x.sum()
        loss.backward()
        assert any(in_turn(operations, asked) == operations for operations in foretold)
    assert len(foretold) == 4  # the fifth is the same as the first, and was learned


def test_the_order_of_a_part_of_the_graph_is_that_of_the_part(foretold_and_asked):
    foretold, asked = foretold_and_asked
    x = torch.randn(8, requires_grad=True)
    with ts.stash("disk_spill", framework="torch", min_bytes=0):
        left = x.exp().sin()
        right = (x + left).tanh().cos()
        loss = (left * right).sum()
    torch.autograd.grad(left.sum(), x, retain_graph=True)
    assert in_turn(foretold[0], asked) == foretold[0]
    loss.backward()


def test_reading_the_order_keeps_nothing_of_the_graph():
    x = torch.randn(8, requires_grad=True)
    gc.disable()
    try:
        with ts.stash("disk_spill", framework="torch", min_bytes=0) as session:
            loss = x.exp().sin().sum()
        session.drain()
        loss.backward(retain_graph=True)
        assert session.stats().live.tensors > 0
        del loss
        assert session.stats().live.tensors == 0
    finally:
        gc.enable()
