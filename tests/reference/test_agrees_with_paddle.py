"""Gradients of a composition of the operations against PaddlePaddle."""

import warnings
from typing import Any

import numpy as np
import pytest

from tensorstash.reference import grad, ops, tensor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing paddle looks for a compiler cache
    paddle = pytest.importorskip("paddle")
F = paddle.nn.functional

SHAPES = ((4, 6), (6, 8), (8, 6), (6,))


def network(x: Any, enter: Any, leave: Any, bias: Any, softmax: Any, gelu: Any, turn: Any) -> Any:
    hidden = gelu(x @ enter)
    mixed = softmax(hidden @ turn(hidden) / 2.0) @ hidden
    out = (mixed.tanh() @ leave + bias) * x
    return (out[1:, ::2] ** 2).mean() + (out / (x * x + 1.0)).exp().sum()


def test_gradients_of_a_composition_agree() -> None:
    arrays = [np.random.default_rng(seed).normal(size=shape) / 2 for seed, shape in enumerate(SHAPES)]
    mine = [tensor(array, requires_grad=True) for array in arrays]
    theirs = [paddle.to_tensor(array, stop_gradient=False) for array in arrays]
    loss = network(*mine, lambda x: x.softmax(), ops.gelu, lambda x: x.swap_last())
    paddle_loss = network(*theirs, F.softmax, lambda x: F.gelu(x, approximate=True), lambda x: x.t())
    np.testing.assert_allclose(loss.item(), paddle_loss.item(), rtol=1e-10)
    for found, expected in zip(grad(loss, mine), paddle.grad(paddle_loss, theirs), strict=True):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-10, atol=1e-12)
