"""What PyTorch and PaddlePaddle have in common for a test, beside their labs."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
import pytest
import torch

from tensorstash.testing.lab import Lab
from tensorstash.testing.labs import lab_of
from tests.frameworks.blocks import Blocks
from tests.paddle.conftest import paddle_is_left_as_it_was

__all__ = ["paddle_is_left_as_it_was"]  # a fixture of this folder


@dataclass(frozen=True)
class Framework:
    """One framework, spelled alike; ``foreign`` is a pair of hooks of its own."""

    lab: Lab
    nn: Any
    module: type
    no_grad: Callable[[], AbstractContextManager[Any]]
    foreign: Callable[[Any, Any], AbstractContextManager[Any]]

    @property
    def backend(self) -> Any:
        """The adapter under test."""
        return self.lab.backend

    def batch(self, rows: int = 8, *, requires_grad: bool = False) -> Any:
        """Return rows of sixteen numbers."""
        values = np.random.default_rng(0).standard_normal((rows, 16)).astype(np.float32)
        return self.lab.tensor(values, requires_grad=requires_grad)

    def batch_norm(self) -> Any:
        """Return a layer over such rows, whose class has two spellings."""
        return (getattr(self.nn, "BatchNorm1d", None) or self.nn.BatchNorm1D)(16)

    def step(self, weight: Any) -> None:
        """Have an optimizer step that raises no version."""
        is_torch = self.module is torch.nn.Module
        optimizers: Any = torch.optim if is_torch else paddle.optimizer
        (optimizers.SGD([weight], 0.01, fused=True) if is_torch else optimizers.SGD(0.01, parameters=[weight])).step()

    def network(self) -> Any:
        """Return three blocks of a linear map and an activation, with the same weights every time."""
        self.lab.seed(0)
        blocks = (self.nn.Sequential(self.nn.Linear(16, 16), self.nn.GELU()) for _ in range(3))
        return self.nn.Sequential(*blocks)

    def save_one(self) -> Any:
        """Run an operation that saves one tensor, and return its output."""
        return self.lab.tensor(np.ones(3, np.float32), requires_grad=True).exp()


@pytest.fixture(params=["torch", "paddle"])
def framework(request: pytest.FixtureRequest) -> Framework:
    """Each framework."""
    if request.param == "torch":
        hooks = torch.autograd.graph.saved_tensors_hooks
        return Framework(lab_of("torch"), torch.nn, torch.nn.Module, torch.no_grad, hooks)
    hooks = paddle.autograd.saved_tensors_hooks
    return Framework(lab_of("paddle"), paddle.nn, paddle.nn.Layer, paddle.no_grad, hooks)


@pytest.fixture
def lab(framework: Framework) -> Lab:
    """The lab of each framework."""
    return framework.lab


@pytest.fixture
def backend(framework: Framework) -> Any:
    """The adapter of each framework."""
    return framework.backend


@pytest.fixture
def blocks(framework: Framework) -> Blocks:
    """Models of blocks, of each framework."""
    return Blocks(framework)


@pytest.fixture
def x(framework: Framework) -> Any:
    """Rows of sixteen numbers, of each framework."""
    return framework.batch()
