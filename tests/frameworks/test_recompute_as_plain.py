"""Programs that a framework trains, and that a recipe must not break: NaN, and parameters that change meanwhile."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

import tensorstash as ts
from tests.frameworks.steps import bits
from tests.samples import pairwise

pytestmark = pytest.mark.filterwarnings("ignore:When training, we now always track:UserWarning")

WIDTH, ROWS = 16, 24


def embedding_changed_between_backwards(framework, around):
    table, last = framework.nn.Embedding(6, WIDTH), framework.nn.Linear(WIDTH, WIDTH)
    with around:
        hidden = last(table(framework.lab.tensor(np.arange(8) % 6)))
        first, second = hidden.square().sum(), hidden.sin().sum()
        del hidden
    first.backward(retain_graph=True)
    with framework.no_grad():
        table.weight[...] = table.weight * 2.0
    second.backward()
    return [*table.parameters(), *last.parameters()]


def bias_of_a_sum_changed_before_backward(framework, around):
    first, last = framework.nn.Linear(WIDTH, WIDTH), framework.nn.Linear(WIDTH, WIDTH)
    with around:
        loss = last(framework.nn.functional.relu(first(framework.batch(ROWS)) * 2.0 + first.bias)).square().sum()
    with framework.no_grad():
        first.bias[...] = first.bias * 2.0 + 1.0
    loss.backward()
    return [*first.parameters(), *last.parameters()]


def bias_changed_between_backwards(framework, around):
    norm, last = framework.batch_norm(), framework.nn.Linear(WIDTH, WIDTH)
    with around:
        hidden = last(framework.nn.functional.relu(norm(framework.batch())))
        first, second = hidden.square().sum(), hidden.sin().sum()
        del hidden
    first.backward(retain_graph=True)
    with framework.no_grad():
        norm.bias[...] = norm.bias + 1.0
    second.backward()
    return [*norm.parameters(), *last.parameters()]


def cast_weight_changed_before_backward(framework, around):
    layer, inputs = framework.nn.Linear(WIDTH, WIDTH), framework.batch(requires_grad=True)
    with around, torch.autocast("cpu", torch.bfloat16):
        loss = layer(inputs).float().square().sum()
    with torch.no_grad():
        layer.weight.zero_()
    loss.backward()
    return [inputs, *layer.parameters()]


def weights_shared_with_other_processes(framework, around):
    nn = framework.nn
    norm, scale, last = nn.LayerNorm(WIDTH), nn.Parameter(torch.randn(600, WIDTH)), nn.Linear(WIDTH, WIDTH)
    weights, leaf = [*norm.parameters(), scale, *last.parameters()], framework.batch(600, requires_grad=True)
    for each in weights:
        each.data.share_memory_()
    with around:
        loss = last(norm(leaf.sin())).square().sum()
        loss = loss + last(nn.functional.gelu(leaf.cos()) * scale).square().sum()
    for each in weights:
        each.data.mul_(0.5)  # as another process does: nobody counts it
    loss.backward()
    return [leaf, *weights]


BOTH = [embedding_changed_between_backwards, bias_of_a_sum_changed_before_backward]
PROGRAMS = {
    "torch": [
        *BOTH,
        bias_changed_between_backwards,
        cast_weight_changed_before_backward,
        weights_shared_with_other_processes,
    ],
    "paddle": BOTH,
}
POLICIES = ["recompute", "recompute | disk_spill"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("framework", "program"),
    [pytest.param(of, each, id=f"{of}, {each.__name__}") for of in PROGRAMS for each in PROGRAMS[of]],
    indirect=["framework"],
)
def test_a_parameter_that_autograd_does_not_need_may_change(framework, program, policy):
    def gradients(around):
        framework.lab.seed(0)
        return bits(program(framework, around))

    around = ts.stash(policy, framework=framework.lab.name, min_bytes=1)
    for _ in range(2):
        assert gradients(around) == gradients(nullcontext())


NORMS = {
    "layer norm": lambda of: of.nn.LayerNorm(WIDTH),
    "layer norm, another eps": lambda of: of.nn.LayerNorm(WIDTH, 1e-12),
    "rms norm": lambda of: of.nn.RMSNorm(WIDTH),  # PaddlePaddle has no such layer
    "batch norm": lambda of: of.batch_norm(),
}
CASES = pairwise(
    PROGRAMS,
    NORMS,
    [np.nan, np.inf, -np.inf, -0.0],
    [(1, 0, 1), (0, 1, 0)],
    POLICIES,
    exists=lambda of, norm, *_: (of, norm) != ("paddle", "rms norm"),
)


@pytest.mark.parametrize(("framework", "norm", "value", "steps", "policy"), CASES, indirect=["framework"])
def test_a_norm_of_nan_or_infinity_has_the_plain_gradient(framework, norm, value, steps, policy):
    nn = framework.nn

    def gradients(around, *, has_value):
        framework.lab.seed(0)
        layer, last = NORMS[norm](framework), nn.Linear(WIDTH, 4)
        x = framework.batch(ROWS, requires_grad=True)
        if has_value:
            with framework.no_grad():
                x[2, 5] = value
        with around:
            loss = last(nn.functional.silu(layer(nn.functional.relu(x * 1.0)))).sum()
        loss.backward()
        return bits([x, *layer.parameters(), *last.parameters()])

    around = ts.stash(policy, framework=framework.lab.name, min_bytes=1)
    for has_value in steps:
        assert gradients(around, has_value=has_value) == gradients(nullcontext(), has_value=has_value)
    if not steps[0]:
        assert sum(done.loads for done in around.stats().recomputed.values()) >= 2
