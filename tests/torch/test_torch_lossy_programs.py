"""The error of a lossy policy is bounded for each operation, and not for a program: these are figures of two."""

from contextlib import nullcontext

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

import tensorstash as ts


def adam_in_the_graph(scope, seed):
    """The gradient of a loss behind five steps of Adam, as MAML takes it, by the weights before them."""
    torch.manual_seed(seed)
    start = [torch.randn(16, 32) * 0.3, torch.zeros(32), torch.randn(32, 1) * 0.3]
    start = [weight.requires_grad_() for weight in start]
    x, y = torch.randn(2, 64, 16), torch.randn(2, 64, 1)

    def loss(weights, task):
        return F.mse_loss(torch.tanh(x[task] @ weights[0] + weights[1]) @ weights[2], y[task])

    with scope:
        weights = [weight * 1.0 for weight in start]
        first = second = [torch.zeros_like(weight) for weight in start]
        for step in range(1, 6):
            grads = torch.autograd.grad(loss(weights, 0), weights, create_graph=True)
            first = [0.9 * old + 0.1 * grad for old, grad in zip(first, grads, strict=True)]
            second = [0.999 * old + 0.001 * grad * grad for old, grad in zip(second, grads, strict=True)]
            moves = [
                (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step) + 1e-12).sqrt() + 1e-8)
                for m, v in zip(first, second, strict=True)
            ]
            weights = [weight - 0.01 * move for weight, move in zip(weights, moves, strict=True)]
        end = loss(weights, 1)
    return torch.cat([grad.flatten() for grad in torch.autograd.grad(end, start)])


def norm_of_mixed_features(scope, seed):
    """The gradient of a batch norm over features between 1e-4 and 1, each relative to its scale."""
    torch.manual_seed(seed)
    scales = 10 ** torch.linspace(-4, 0, 64)
    x, target, weight = torch.randn(32, 64) * scales, torch.randn(32, 64), torch.eye(64).requires_grad_()
    with scope:
        normed = F.batch_norm((x @ weight) * 1.0, None, None, training=True, eps=1e-12)
        loss = (normed * target).tanh().sum()
    return torch.autograd.grad(loss, weight)[0] * scales


def error(program, policy, seed):
    stash = ts.stash(policy, framework="torch", min_bytes=0)
    for _ in range(2):  # what the last operations save is known from the second step on
        got, expected = program(stash, seed), program(nullcontext(), seed)
    return float((got - expected).norm() / expected.norm())


@pytest.mark.parametrize(
    ("program", "multiple", "seed"),
    [(adam_in_the_graph, 0.5, 0), (norm_of_mixed_features, 5, 0), (norm_of_mixed_features, 5, 1)],
)
def test_a_program_is_off_by_multiples_under_quantize_by_a_percent_under_cast_and_else_not(program, multiple, seed):
    assert error(program, "quantize:bits=8", seed) > multiple
    assert 0 < error(program, "cast:dtype=bfloat16", seed) < 0.01
    assert [error(program, policy, seed) for policy in ("compress", "recompute | disk_spill")] == [0.0, 0.0]
