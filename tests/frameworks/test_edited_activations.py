"""Activations that are edited without a record: the framework's own gradients or a named error, and no other gradient.

The default run covers each edit with every other operation, from the first or a later step on. Every combination::

    TENSORSTASH_EVERY_EDIT=1 python -m pytest tests/frameworks/test_edited_activations.py
"""

import os
from contextlib import nullcontext
from functools import cache, partial

import pytest
import torch

import tensorstash as ts
from tensorstash.errors import TensorStashError
from tests.frameworks.steps import bits

pytestmark = [
    pytest.mark.filterwarnings("ignore::tensorstash.TensorStashWarning"),
    pytest.mark.filterwarnings("ignore:When training, we now always track:UserWarning"),
]

EVERY = bool(os.environ.get("TENSORSTASH_EVERY_EDIT"))

LAYERS, WIDTH, ROWS, EDITED = 3, 16, 24, 1

BUDGET = "recompute | disk_spill, budget"
POLICIES = ("recompute", "recompute | disk_spill", BUDGET)


def _rows(z):
    z[5:7] = 0


def _shuffle(z):
    z.copy_(z.flip(0).clone())


def _other_memory(z):
    z.data = z.data * 0.5


def _bytes(z):
    z.untyped_storage()[17] = 3


def _set_one_element(z):
    values = z.numpy()
    values[7, 3] += 1
    z.set_value(values)


BOTH = {
    "no_grad rows": _rows,
    "no_grad squashed": lambda z: z.tanh_(),
    "no_grad clipped": lambda z: z.clip_(-0.1, 0.1),
    "detach rows": lambda z: _rows(z.detach()),
    "detach squashed": lambda z: z.detach().tanh_(),
}
EDITS = {
    "torch": {
        **BOTH,
        "no_grad patched": lambda z: z[3].copy_(torch.linspace(0, 1, WIDTH)),
        "no_grad shuffled": _shuffle,
        "no_grad a view": lambda z: z.view(-1)[40:50].fill_(1.0),
        "no_grad NaN": lambda z: z[2, 2].fill_(torch.nan),
        "data one element": lambda z: z.data[7, 3].add_(1.0),
        "data negated": lambda z: z.data[:, 4:6].neg_(),
        "data shuffled": lambda z: _shuffle(z.data),
        "data other memory": _other_memory,
        "data transposed": lambda z: z.data.t()[3].zero_(),
        "numpy": lambda z: z.detach().numpy().__setitem__((slice(2, 4), slice(None)), 0.25),
        "bytes": _bytes,
    },
    "paddle": {
        **BOTH,
        "set_value": lambda z: z.set_value(z.numpy() * 0.5),
        "set_value of one element": _set_one_element,
    },
}
"""Those without a gradient run while nothing is recorded, and are counted by the version."""

WEIGHT = torch.full((WIDTH,), 1.5, requires_grad=True)

OPERATIONS = {
    "torch": {
        "mul": lambda _, u: u * u * 2.0,
        "gelu": lambda f, u: f.gelu(u),
        "silu": lambda f, u: f.silu(u),
        "relu": lambda f, u: f.relu(u),
        "layer_norm": lambda f, u: f.layer_norm(u, (WIDTH,), WEIGHT),
        "batch_norm": lambda f, u: f.batch_norm(u, None, None, training=True),
        "dropout": lambda f, u: f.dropout(u * u, 0.25),
        "cast": lambda _, u: (u * u).to(torch.float64).to(torch.float32),
    },
    "paddle": {
        "mul": lambda _, u: u * u,
        "add": lambda f, u: u + f.silu(u),
        "silu": lambda f, u: f.silu(u),
        "gelu": lambda f, u: f.gelu(u),
    },
}

WHEN = {"from the first step on": (1, 1, 1, 1, 1), "from the third step on": (0, 0, 1, 1, 1, 1)}


def under(framework, policy):
    """Return a stash of one of the policies."""
    budget = 2**10 if policy == BUDGET else None
    return ts.stash(policy.removesuffix(", budget"), budget=budget, framework=framework.lab.name, min_bytes=1)


def gradients(framework, around, operation, edit):
    """Return the gradients of some layers of a kind, one of which has its activation edited."""
    framework.lab.seed(0)
    nn, name = framework.nn, framework.lab.name
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    h = framework.batch(ROWS)
    with around:
        for number, layer in enumerate(layers):
            z = OPERATIONS[name][operation](nn.functional, layer(h))
            if number == EDITED and edit is not None:
                with framework.no_grad() if edit.startswith("no_grad") else nullcontext():
                    EDITS[name][edit](z)
            h = nn.functional.silu(z)
            del z
        loss = h.square().sum()
    loss.backward()
    return bits(weight for layer in layers for weight in layer.parameters())


def attempt(*program):
    """Return gradients, or the error that took their place."""
    try:
        return gradients(*program)
    except (TensorStashError, RuntimeError, ValueError) as error:
        return error


def cells(of):
    """Yield all combinations of edit, operation, step and policy; or each edit with every other operation."""
    policies = POLICIES if of == "torch" else POLICIES[:2]
    for row, edit in enumerate(EDITS[of]):
        for column, operation in enumerate(OPERATIONS[of]):
            for third, when in enumerate(WHEN):
                for fourth, policy in enumerate(policies):
                    is_of_sample = third == column // 2 % 2 and fourth == (row + column // 2) % len(policies)
                    if EVERY or (is_of_sample and (of == "paddle" or row % 2 == column % 2)):
                        yield edit, operation, when, policy


@pytest.mark.parametrize(
    ("framework", "edit"), [(of, edit) for of in EDITS for edit in EDITS[of]], indirect=["framework"]
)
def test_an_edit_without_a_record_gives_the_gradient_of_the_plain_framework_or_a_named_error(framework, edit):
    mine, recomputed = [cell for cell in cells(framework.lab.name) if cell[0] == edit], 0
    plain = cache(partial(attempt, framework, nullcontext()))
    for cell in mine:
        _, operation, when, policy = cell
        around = under(framework, policy)
        for is_edited in WHEN[when]:
            program = operation, edit if is_edited else None
            expected, found = plain(*program), attempt(framework, around, *program)
            if isinstance(expected, Exception):
                assert isinstance(found, TensorStashError), f"{cell}: autograd refuses it"
            elif isinstance(found, Exception):
                assert isinstance(found, TensorStashError), f"{cell}: {found!r}"
            else:
                assert found == expected, f"{cell}: another gradient"
        assert isinstance(found, list) == isinstance(expected, list), f"{cell}: refused for ever: {found}"
        recomputed += len(around.stats().recomputed)
    assert recomputed >= len(mine) // 3, "nothing was recomputed"
