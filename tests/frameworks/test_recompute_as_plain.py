"""Programs that a framework trains, and that a recipe must not break: NaN, and parameters that change meanwhile."""

from contextlib import nullcontext

import numpy as np
import pytest

import tensorstash as ts
from tests.frameworks.steps import bits

pytestmark = pytest.mark.filterwarnings("ignore:When training, we now always track:UserWarning")

WIDTH, ROWS = 16, 24

POLICIES = pytest.mark.parametrize("policy", ["recompute", "recompute | disk_spill"])


NORMS = {
    "layer norm": lambda of: of.nn.LayerNorm(WIDTH),
    "layer norm, another eps": lambda of: of.nn.LayerNorm(WIDTH, 1e-12),
    "rms norm": lambda of: of.nn.RMSNorm(WIDTH),
    "batch norm": lambda of: of.batch_norm(),
}


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


PROGRAMS = [embedding_changed_between_backwards, bias_of_a_sum_changed_before_backward]


@POLICIES
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__.replace("_", " "))
def test_a_parameter_that_autograd_does_not_need_may_change(framework, program, policy):
    def gradients(around):
        framework.lab.seed(0)
        return bits(program(framework, around))

    around = ts.stash(policy, framework=framework.lab.name, min_bytes=1)
    for _ in range(2):
        assert gradients(around) == gradients(nullcontext())


@POLICIES
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -0.0])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("steps", [(1, 0, 1), (0, 1, 0)], ids=["first", "later"])
def test_a_norm_of_nan_or_infinity_has_the_plain_gradient(framework, steps, norm, value, policy):
    nn = framework.nn
    if norm == "rms norm" and not hasattr(nn, "RMSNorm"):
        pytest.skip("PaddlePaddle has no such layer")

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
