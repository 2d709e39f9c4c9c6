"""Tensors of each framework that are made again: the same bits, by every rule that there is."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

import tensorstash as ts
from tensorstash.backends.paddle.recipes import RULES as PADDLE_RULES
from tensorstash.backends.torch.recipes.rules import rules as torch_rules
from tensorstash.policies.recompute import RULES

pytestmark = pytest.mark.filterwarnings("ignore:When training, we now always track:UserWarning")

EIGHT = [8]


class Makers:
    """What a case is made of.

    Args:
        framework: the functions and tensors.
    """

    def __init__(self, framework):
        self.functional, self._lab = framework.nn.functional, framework.lab
        self.weights = []  # recipes take only parameters that somebody has

    def weight(self, *shape):
        values = np.random.default_rng(len(self.weights)).uniform(0.5, 1.5, shape).astype(np.float32)
        self.weights.append(self._lab.parameter(values))
        return self.weights[-1]

    def constant(self, values):
        return self._lab.tensor(np.asarray(values, np.float32))

    def batch_norm(self, x, *, trains=True, **more):
        mean, variance = self.constant(np.zeros(8)), self.constant(np.ones(8))
        weight, bias = self.weight(8), self.weight(8)
        return self.functional.batch_norm(x, mean, variance, weight, bias, trains, 0.9, 1e-4, **more)


BOTH = {
    "gelu": lambda _, f, x: f.gelu(x),
    "silu": lambda _, f, x: f.silu(x),
    "relu": lambda _, f, x: f.relu(x * x),
    "add": lambda _, f, x: x.exp() + f.sigmoid(x),
    "mul": lambda _, f, x: x * x.exp(),
    "layer_norm": lambda of, f, x: f.layer_norm(x, EIGHT, of.weight(8), of.weight(8), 1e-6),
    "batch_norm": lambda of, f, x: of.batch_norm(x),
    "gated": lambda _, f, x: f.silu(x) * x.exp(),
    "residual": lambda of, f, x: f.relu(of.batch_norm(x) + x.exp()),
}
OWN = {
    "torch": {
        "gelu tanh": lambda _, f, x: f.gelu(x, approximate="tanh"),
        "add scaled": lambda _, f, x: torch.add(x.exp(), x.sigmoid(), alpha=2),
        "mul number": lambda _, f, x: x.exp() * 3,
        "cast": lambda _, f, x: x.exp().to(torch.float64).to(torch.float32),
        "layer_norm bare": lambda _, f, x: f.layer_norm(x, EIGHT, eps=1e-12),
        "batch_norm bare": lambda _, f, x: f.batch_norm(x, None, None, training=True),
        "clone": lambda _, f, x: x.exp().view(5, 3, 8).transpose(0, 1).contiguous(),
        "reshaped copy": lambda _, f, x: x.exp().view(5, 3, 8).transpose(0, 1).reshape(15, 8),
    },
    "paddle": {
        "gelu tanh": lambda _, f, x: f.gelu(x, approximate=True),
        "relu in place": lambda _, f, x: f.relu_(x * x.exp()),
        "glu": lambda _, f, x: f.swiglu(x, x.exp()),
        "layer_norm of two axes": lambda of, f, x: f.layer_norm(
            x.reshape([3, 5, 8]), [5, 8], of.weight(40), of.weight(40), 1e-3
        ),
        "batch_norm, channels last": lambda of, f, x: of.batch_norm(x.reshape([3, 1, 5, 8]), data_format="NHWC"),
        "dropout": lambda _, f, x: f.dropout(x.exp(), 0.3),
    },
}


def stash(framework, **options):
    return ts.stash(ts.Recompute(**options), framework=framework.lab.name, min_bytes=1)


@pytest.mark.parametrize(
    ("framework", "case"), [(name, case) for name in OWN for case in (*BOTH, *OWN[name])], indirect=["framework"]
)
def test_each_rule_makes_what_was_saved(framework, case):
    lab, make = framework.lab, {**BOTH, **OWN[framework.lab.name]}[case]

    def run(around):
        lab.seed(1)
        of = Makers(framework)
        leaf = lab.tensor(np.random.default_rng(0).standard_normal((15, 8)).astype(np.float32), requires_grad=True)
        with around:
            made = make(of, of.functional, leaf.sin() + 2.0)
            loss = made.cos().sum()
        del made
        loss.backward()
        return [None if each.grad is None else lab.gradient(each).tobytes() for each in (leaf, *of.weights)]

    around = stash(framework)
    assert run(around) == run(nullcontext())
    stats = around.stats()
    assert not stats.refused
    assert stats.recomputed, stats


def test_rules_are_named_as_the_policy_knows_them():
    named = {rule.name for rules in (torch_rules(), PADDLE_RULES) for rule in rules.values() if not rule.is_view}
    assert named | {"masks", "narrow"} == set(RULES)  # the two that are no operation of the program


@pytest.mark.parametrize("modes", [(True, True), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("policy", ["recompute", "recompute | disk_spill"])
def test_what_a_normalization_learns_may_change_before_backward(framework, policy, modes):
    nn, lab = framework.nn, framework.lab

    def run(around):
        lab.seed(0)
        norm, layer, loss = framework.batch_norm(), nn.Linear(16, 16), 0.0
        for number, trains in enumerate(modes, 1):
            (norm.train if trains else norm.eval)()
            with around:
                loss = loss + layer(nn.functional.relu(norm(layer(framework.batch() * number)))).square().mean()
        loss.backward()
        weights = [*norm.parameters(), *layer.parameters()]
        learned = [lab.bits(each).tobytes() for each in norm.buffers()]  # once
        return learned + [lab.gradient(each).tobytes() for each in weights if each.grad is not None]

    around = ts.stash(policy, framework=lab.name, min_bytes=256)  # running statistics are small, and copied
    for _ in range(2):
        assert run(around) == run(nullcontext())
    assert "relu(batch_norm)" in around.stats().recomputed
