"""Layers; weights are drawn from an explicit generator, uniform in ±1/√(inputs)."""

from __future__ import annotations

import math

from tensorstash.reference import ops
from tensorstash.reference.creation import ones, zeros
from tensorstash.reference.nn.module import Module
from tensorstash.reference.random import Generator
from tensorstash.reference.storage.dtypes import DTypeLike, float32
from tensorstash.reference.tensor import Parameter, Tensor


def _uniform(generator: Generator, shape: tuple[int, ...], inputs: int, dtype: DTypeLike) -> Parameter:
    bound = 1 / math.sqrt(inputs)
    return Parameter(generator.uniform(shape, -bound, bound, dtype))


class Linear(Module):
    """``x @ weight.T + bias`` with weight (outputs, inputs)."""

    def __init__(
        self, inputs: int, outputs: int, *, bias: bool = True, generator: Generator, dtype: DTypeLike = float32
    ) -> None:
        self.weight = _uniform(generator, (outputs, inputs), inputs, dtype)
        self.bias = _uniform(generator, (outputs,), inputs, dtype) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        out = x @ self.weight.swap_last()
        return out if self.bias is None else out + self.bias


class Embedding(Module):
    """Rows of weight (entries, features) by index; drawn from a normal distribution of width `scale`."""

    def __init__(
        self, entries: int, features: int, *, scale: float = 1.0, generator: Generator, dtype: DTypeLike = float32
    ) -> None:
        self.weight = Parameter(generator.normal((entries, features), dtype) * scale)

    def forward(self, indices: Tensor) -> Tensor:
        return ops.embedding(self.weight, indices)


class LayerNorm(Module):
    """Normalisation of the last dimension."""

    def __init__(self, features: int, *, eps: float = 1e-5, dtype: DTypeLike = float32) -> None:
        self.weight = Parameter(ones((features,), dtype))
        self.bias = Parameter(zeros((features,), dtype))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return ops.layer_norm(x, self.weight, self.bias, self.eps)


class BatchNorm(Module):
    """Normalisation of each channel of (batch, channels, ...)."""

    def __init__(self, channels: int, *, momentum: float = 0.1, eps: float = 1e-5, dtype: DTypeLike = float32) -> None:
        self.weight = Parameter(ones((channels,), dtype))
        self.bias = Parameter(zeros((channels,), dtype))
        self.running_mean = zeros((channels,), dtype)
        self.running_variance = ones((channels,), dtype)
        self.momentum, self.eps = momentum, eps

    def forward(self, x: Tensor) -> Tensor:
        return ops.batch_norm(
            x, self.weight, self.bias, self.running_mean, self.running_variance,
            training=self.training, momentum=self.momentum, eps=self.eps,
        )  # fmt: skip


class Conv2d(Module):
    """Square filters with weight (outputs, inputs, size, size) over (batch, inputs, height, width)."""

    def __init__(
        self, inputs: int, outputs: int, size: int, *, stride: int = 1, padding: int = 0, generator: Generator,
        dtype: DTypeLike = float32,
    ) -> None:  # fmt: skip
        self.weight = _uniform(generator, (outputs, inputs, size, size), inputs * size * size, dtype)
        self.bias = _uniform(generator, (outputs,), inputs * size * size, dtype)
        self.stride, self.padding = stride, padding

    def forward(self, x: Tensor) -> Tensor:
        return ops.conv2d(x, self.weight, self.bias, self.stride, self.padding)


class Dropout(Module):
    """Zeroes elements with probability `p` in training; draws from the generator it is given."""

    def __init__(self, p: float, generator: Generator) -> None:
        if not 0 <= p <= 1:
            raise ValueError(f"dropout probability must be between 0 and 1, got {p}")
        self.p, self.generator = p, generator

    def forward(self, x: Tensor) -> Tensor:
        return ops.dropout(x, self.p, self.generator) if self.training and self.p else x


class ReLU(Module):
    """The positive part."""

    def forward(self, x: Tensor) -> Tensor:
        return x.relu()


class GELU(Module):
    """The tanh form of the Gaussian error linear unit."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.gelu(x)


class Sequential(Module):
    """Modules one after another."""

    def __init__(self, *layers: Module) -> None:
        self.layers = list(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x
