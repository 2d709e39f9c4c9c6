"""Activations that are edited without a record: the framework's own gradients or a named error, and no other gradient.

The default run covers each edit with every other operation, from the first or a later step on. Every combination::

    TENSORSTASH_EVERY_EDIT=1 python -m pytest tests/frameworks/test_edited_activations.py
"""

import os
from contextlib import nullcontext

import paddle
import pytest
import torch

import tensorstash as ts
from tensorstash.errors import TensorStashError

pytestmark = [
    pytest.mark.filterwarnings("ignore::tensorstash.TensorStashWarning"),
    pytest.mark.filterwarnings("ignore:When training, we now always track:UserWarning"),
]

EVERY = bool(os.environ.get("TENSORSTASH_EVERY_EDIT"))

LAYERS, WIDTH, ROWS, EDITED = 3, 16, 24, 1

BUDGET = "recompute | disk_spill, budget"
POLICIES = ("recompute", "recompute | disk_spill", BUDGET)


class Torch:
    name, seed, nn, F, randn = "torch", torch.manual_seed, torch.nn, torch.nn.functional, torch.randn
    no_grad = torch.no_grad

    scaled = staticmethod(lambda z: z.mul_(0.5))
    clipped = staticmethod(lambda z: z.clamp_(-0.1, 0.1))


class Paddle:
    name, seed, nn, F = "paddle", paddle.seed, paddle.nn, paddle.nn.functional
    no_grad = paddle.no_grad

    randn = staticmethod(lambda *shape: paddle.randn(shape))
    scaled = staticmethod(lambda z: z.scale_(0.5))
    clipped = staticmethod(lambda z: z.clip_(0.0, 0.1))


def unrecorded(of, edit):
    """Return an edit that is run while nothing is recorded, but is counted by the version."""

    def run(z):
        with of.no_grad():
            edit(z)

    return run


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


def edits(of):
    """Return the edits that both frameworks know."""
    return {
        "no_grad rows": unrecorded(of, _rows),
        "no_grad scaled": unrecorded(of, of.scaled),
        "no_grad clipped": unrecorded(of, of.clipped),
        "detach rows": lambda z: _rows(z.detach()),
        "detach scaled": lambda z: of.scaled(z.detach()),
    }


EDITS = {
    Torch: {
        **edits(Torch),
        "no_grad patched": unrecorded(Torch, lambda z: z[3].copy_(torch.linspace(0, 1, WIDTH))),
        "no_grad shuffled": unrecorded(Torch, _shuffle),
        "no_grad a view": unrecorded(Torch, lambda z: z.view(-1)[40:50].fill_(1.0)),
        "no_grad NaN": unrecorded(Torch, lambda z: z[2, 2].fill_(torch.nan)),
        "data one element": lambda z: z.data[7, 3].add_(1.0),
        "data negated": lambda z: z.data[:, 4:6].neg_(),
        "data shuffled": lambda z: _shuffle(z.data),
        "data other memory": _other_memory,
        "data transposed": lambda z: z.data.t()[3].zero_(),
        "numpy": lambda z: z.detach().numpy().__setitem__((slice(2, 4), slice(None)), 0.25),
        "bytes": _bytes,
    },
    Paddle: {
        **edits(Paddle),
        "set_value": lambda z: z.set_value(z.numpy() * 0.5),
        "set_value of one element": _set_one_element,
    },
}

WEIGHT = torch.full((WIDTH,), 1.5, requires_grad=True)

OPERATIONS = {
    Torch: {
        "mul": lambda u: u * u * 2.0,
        "gelu": Torch.F.gelu,
        "silu": Torch.F.silu,
        "relu": Torch.F.relu,
        "tanh": torch.tanh,
        "layer_norm": lambda u: Torch.F.layer_norm(u, (WIDTH,), WEIGHT),
        "batch_norm": lambda u: Torch.F.batch_norm(u, None, None, training=True),
        "dropout": lambda u: Torch.F.dropout(u * u, 0.25),
        "power": lambda u: (u * u + 1.0).rsqrt() - u**3,
        "cast": lambda u: (u * u).to(torch.float64).to(torch.float32),
    },
    Paddle: {
        "mul": lambda u: u * u,
        "add": lambda u: u + Paddle.F.silu(u),
        "silu": Paddle.F.silu,
        "gelu": Paddle.F.gelu,
        "sub": lambda u: u - u * u,
    },
}

WHEN = {"from the first step on": (1, 1, 1, 1, 1), "from the third step on": (0, 0, 1, 1, 1, 1)}


def bits(parameters):
    return [each.grad.numpy().tobytes() for each in parameters if each.grad is not None]


def under(of, policy):
    """Return a stash of one of the policies."""
    budget = 2**10 if policy == BUDGET else None
    return ts.stash(policy.removesuffix(", budget"), budget=budget, framework=of.name, min_bytes=1)


def gradients(of, around, operation, edit):
    """Return the gradients of some layers of a kind, one of which has its activation edited."""
    of.seed(0)
    layers = [of.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    h = of.randn(ROWS, WIDTH)
    with around:
        for number, layer in enumerate(layers):
            z = operation(layer(h))
            if number == EDITED and edit is not None:
                edit(z)
            h = of.F.sigmoid(z)
            del z
        loss = h.square().sum()
    loss.backward()
    return bits(weight for layer in layers for weight in layer.parameters())


def attempt(of, around, operation, edit):
    """Return gradients, or the error that took their place."""
    try:
        return gradients(of, around, operation, edit)
    except (TensorStashError, RuntimeError, ValueError) as error:
        return error


def cells(of):
    """Yield all combinations of edit, operation, step and policy; or each edit with every other operation."""
    policies = POLICIES if of is Torch else POLICIES[:2]
    for row, edit in enumerate(EDITS[of]):
        for column, operation in enumerate(OPERATIONS[of]):
            for third, when in enumerate(WHEN):
                for fourth, policy in enumerate(policies):
                    is_of_sample = third == column // 2 % 2 and fourth == (row + column // 2) % len(policies)
                    if EVERY or (is_of_sample and (of is Paddle or row % 2 == column % 2)):
                        yield edit, operation, when, policy


@pytest.mark.parametrize(
    ("of", "edit"),
    [(of, edit) for of in EDITS for edit in EDITS[of]],
    ids=lambda value: getattr(value, "name", value),
)
def test_an_edit_without_a_record_gives_the_gradient_of_the_plain_framework_or_a_named_error(of, edit):
    mine, recomputed = [cell for cell in cells(of) if cell[0] == edit], 0
    for cell in mine:
        _, operation, when, policy = cell
        around = under(of, policy)
        for is_edited in WHEN[when]:
            program = (OPERATIONS[of][operation], EDITS[of][edit] if is_edited else None)
            expected, found = attempt(of, nullcontext(), *program), attempt(of, around, *program)
            if isinstance(expected, Exception):
                assert isinstance(found, TensorStashError), f"{cell}: autograd refuses it"
            elif isinstance(found, Exception):
                assert isinstance(found, TensorStashError), f"{cell}: {found!r}"
            else:
                assert found == expected, f"{cell}: another gradient"
        assert isinstance(found, list) == isinstance(expected, list), f"{cell}: refused for ever: {found}"
        recomputed += len(around.stats().recomputed)
    assert recomputed >= len(mine) // 3, "nothing was recomputed"
