"""Checking gradients against finite differences, to any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorstash.reference.autograd.engine import grad
from tensorstash.reference.autograd.modes import enable_grad, no_grad
from tensorstash.reference.creation import tensor
from tensorstash.reference.ops import reduce_sum
from tensorstash.reference.random import Generator
from tensorstash.reference.storage.dtypes import Array
from tensorstash.reference.tensor import Tensor


class GradientError(AssertionError):
    """An analytic gradient is not that of the function."""


def check_grads(
    function: Callable[..., Tensor | Sequence[Tensor]],
    inputs: Sequence[Tensor],
    order: int = 2,
    *,
    eps: float = 1e-6,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    seed: int = 0,
) -> None:
    """Compare gradients with central differences, element by element.

    Outputs are reduced to one number by fixed random weights. For each further order the function checked is the
    gradient of the one before, as a function of the inputs and of these weights (method of HIPS autograd).

    Args:
        function: from the inputs to a tensor or several; must be pure.
        inputs: float64 or complex128 leaves that require grad.
        order: how many derivatives to check.
        eps: step of the difference.
        rtol: tolerance relative to the numeric gradient.
        atol: absolute tolerance.
        seed: of the random weights.

    Raises:
        GradientError: a gradient is wrong; the message says which input, which order and by how much.
        ValueError: an input is not a double precision leaf.

    >>> x = tensor([0.5, 2.0], "float64", requires_grad=True)
    >>> check_grads(lambda x: x.exp() * x, [x])
    """
    for position, value in enumerate(inputs):
        if value.dtype.name not in ("float64", "complex128") or not (value.is_leaf and value.requires_grad):
            raise ValueError(f"input {position} of check_grads must be a float64 or complex128 leaf that requires grad")
    _check(function, list(inputs), order, 1, eps, rtol, atol, Generator(seed))


def _check(
    function: Callable[..., Any], inputs: list[Tensor], last: int, order: int, eps: float, rtol: float, atol: float,
    generator: Generator,
) -> None:  # fmt: skip
    with no_grad():
        weights = [_weights(y, generator) for y in _tuple(function(*inputs))]

    def score(*values: Tensor) -> Tensor:
        parts = [reduce_sum((y * w).real()) for y, w in zip(_tuple(function(*values)), weights, strict=True)]
        return sum(parts[1:], parts[0])

    found = grad(score(*inputs), inputs, allow_unused=True)
    for position, (value, gradient) in enumerate(zip(inputs, found, strict=True)):
        numeric = _numeric(score, inputs, position, eps)
        analytic = np.zeros_like(numeric) if gradient is None else gradient.numpy()
        if not np.allclose(analytic, numeric, rtol=rtol, atol=atol):
            worst = float(np.max(np.abs(analytic - numeric)))
            raise GradientError(
                f"gradient of order {order} for input {position} of shape {value.shape} is off by up to {worst:.3g}:\n"
                f"analytic {analytic.tolist()}\nnumeric  {numeric.tolist()}"
            )
    if order < last:
        seeds = [w.detach().requires_grad_() for w in weights]
        count = len(inputs)

        def gradients(*values: Tensor) -> tuple[Tensor, ...]:
            with enable_grad():
                outputs = _tuple(function(*values[:count]))
                live = [(y, w) for y, w in zip(outputs, values[count:], strict=True) if y.requires_grad]
                seeded, cotangents = [y for y, _ in live], [w for _, w in live]
                first = grad(seeded, values[:count], cotangents, create_graph=True, allow_unused=True)
            return tuple(g for g in first if g is not None)

        _check(gradients, [*inputs, *seeds], last, order + 1, eps, rtol, atol, generator)


def _numeric(score: Callable[..., Tensor], inputs: list[Tensor], position: int, eps: float) -> Array:
    """Differentiate numerically by the real and, for complex inputs, the imaginary part of each element."""
    base = inputs[position].detach().numpy().copy()
    result = np.zeros_like(base)
    steps: list[complex] = [eps, eps * 1j] if inputs[position].dtype.is_complex else [eps]
    for index in np.ndindex(base.shape):
        for step in steps:
            ends = []
            for sign in (1, -1):
                moved = base.copy()
                moved[index] += sign * step
                values = [*inputs]
                values[position] = tensor(moved, requires_grad=True)
                ends.append(score(*values).item())
            result[index] += (ends[0] - ends[1]) / (2 * eps) * (step / eps)
    return result


def _weights(output: Tensor, generator: Generator) -> Tensor:
    real = generator.uniform(output.shape, 0.5, 1.5, output.dtype, output.device)
    if not output.dtype.is_complex:
        return real
    return real + generator.uniform(output.shape, 0.5, 1.5, output.dtype, output.device) * 1j


def _tuple(outputs: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
