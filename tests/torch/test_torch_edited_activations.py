"""Activations that are edited without a record: the gradients of plain PyTorch or a named error, and no other gradient.

The default run covers each edit with every other operation, from the first or a later step on. Every combination::

    TENSORSTASH_EVERY_EDIT=1 python -m pytest tests/torch/test_torch_edited_activations.py
"""

import os
from contextlib import nullcontext
from functools import lru_cache

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import tensorstash as ts
from tensorstash.errors import TensorStashError

pytestmark = pytest.mark.filterwarnings("ignore::tensorstash.TensorStashWarning")

EVERY = bool(os.environ.get("TENSORSTASH_EVERY_EDIT"))

LAYERS, WIDTH, ROWS, EDITED = 3, 16, 24, 1


def under(policy):
    """Return a stash of one of the policies."""
    budget = 2**10 if policy == BUDGET else None
    return ts.stash(policy.removesuffix(", budget"), budget=budget, framework="torch", min_bytes=1)


BUDGET = "recompute | disk_spill, budget"
POLICIES = ("recompute", "recompute | disk_spill", BUDGET)


def unrecorded(edit):
    """Return an edit that is run while nothing is recorded, but is counted by the version."""

    def run(z):
        with torch.no_grad():
            edit(z)

    return run


def _shuffle(z):
    z.copy_(z.flip(0).clone())


def _other_memory(z):
    z.data = z.data * 0.5


def _bytes(z):
    z.untyped_storage()[17] = 3


def _rows(z):
    z[5:7] = 0


EDITS = {
    "no_grad rows": unrecorded(_rows),
    "no_grad scaled": unrecorded(lambda z: z.mul_(0.5)),
    "no_grad clipped": unrecorded(lambda z: z.clamp_(-0.1, 0.1)),
    "no_grad patched": unrecorded(lambda z: z[3].copy_(torch.linspace(0, 1, WIDTH))),
    "no_grad dropped": unrecorded(lambda z: z.masked_fill_(torch.arange(WIDTH) % 3 == 0, 0.0)),
    "no_grad shuffled": unrecorded(_shuffle),
    "no_grad a view": unrecorded(lambda z: z.view(-1)[40:50].fill_(1.0)),
    "no_grad NaN": unrecorded(lambda z: z[2, 2].fill_(torch.nan)),
    "data rows": lambda z: _rows(z.data),
    "data scaled": lambda z: z.data.mul_(0.5),
    "data clipped": lambda z: z.data.clamp_(-0.1, 0.1),
    "data one element": lambda z: z.data[7, 3].add_(1.0),
    "data negated": lambda z: z.data[:, 4:6].neg_(),
    "data shuffled": lambda z: _shuffle(z.data),
    "data other memory": _other_memory,
    "data transposed": lambda z: z.data.t()[3].zero_(),
    "detach rows": lambda z: _rows(z.detach()),
    "detach scaled": lambda z: z.detach().mul_(0.5),
    "numpy": lambda z: z.detach().numpy().__setitem__((slice(2, 4), slice(None)), 0.25),
    "bytes": _bytes,
}

WEIGHT = torch.full((WIDTH,), 1.5, requires_grad=True)

OPERATIONS = {
    "mul": lambda u: u * u * 2.0,
    "gelu": F.gelu,
    "silu": F.silu,
    "relu": F.relu,
    "tanh": torch.tanh,
    "layer_norm": lambda u: F.layer_norm(u, (WIDTH,), WEIGHT),
    "batch_norm": lambda u: F.batch_norm(u, None, None, training=True),
    "dropout": lambda u: F.dropout(u * u, 0.25),
    "power": lambda u: (u * u + 1.0).rsqrt() - u**3,
    "cast": lambda u: (u * u).to(torch.float64).to(torch.float32),
}

WHEN = {"from the first step on": (1, 1, 1, 1, 1), "from the third step on": (0, 0, 1, 1, 1, 1)}


def gradients(around, operation, edit):
    """Return the gradients of some layers of a kind, one of which has its activation edited."""
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
    h = torch.randn(ROWS, WIDTH)
    with around:
        for number, layer in enumerate(layers):
            z = operation(layer(h))
            if number == EDITED and edit is not None:
                edit(z)
            h = torch.sigmoid(z)
            del z
        loss = h.square().sum()
    loss.backward()
    return [weight.grad for weight in layers.parameters()]


def attempt(around, operation, edit):
    """Return gradients, or the error that took their place."""
    try:
        return gradients(around, operation, edit)
    except (TensorStashError, RuntimeError) as error:
        return error


@lru_cache(None)
def plain(operation, edit):
    """Return what happens without hooks."""
    return attempt(nullcontext(), OPERATIONS[operation], None if edit is None else EDITS[edit])


def bits(tensors):
    return [tensor.view(torch.int32) for tensor in tensors]


def cells():
    """Return all combinations of edit, operation, step and policy; or each edit with every other operation."""
    for row, edit in enumerate(EDITS):
        for column, operation in enumerate(OPERATIONS):
            for third, when in enumerate(WHEN):
                for fourth, policy in enumerate(POLICIES):
                    if EVERY or (
                        row % 2 == column % 2 and third == column // 2 % 2 and fourth == (row + column // 2) % 3
                    ):
                        yield edit, operation, when, policy


CELLS = list(cells())


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_without_a_record_gives_the_gradient_of_plain_pytorch_or_a_named_error(edit):
    mine = [cell for cell in CELLS if cell[0] == edit]
    recomputed = 0
    for _, operation, when, policy in mine:
        around = under(policy)
        for is_edited in WHEN[when]:
            expected = plain(operation, edit if is_edited else None)
            found = attempt(around, OPERATIONS[operation], EDITS[edit] if is_edited else None)
            cell = f"{edit}, {operation}, {when}, {policy}"
            if isinstance(expected, Exception):
                assert isinstance(found, TensorStashError), f"{cell}: autograd refuses it"
            elif isinstance(found, Exception):
                assert isinstance(found, TensorStashError), f"{cell}: {found!r}"
            else:
                assert all(map(torch.equal, bits(found), bits(expected))), f"{cell}: another gradient"
        assert isinstance(found, list) == isinstance(expected, list), f"{cell}: refused for ever: {found}"
        recomputed += len(around.stats().recomputed)
    assert recomputed >= len(mine) // 3, "nothing was recomputed"
