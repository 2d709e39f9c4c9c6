"""The gradient checker fails on wrong gradients."""

from __future__ import annotations

import numpy as np
import pytest

from tensorstash.reference import GradientError, PyLayer, Tensor, check_grads, tensor
from tensorstash.reference.autograd.primitive import Signature


def double_leaf() -> Tensor:
    return tensor([0.5, -1.5], "float64", requires_grad=True)


class WrongFactor(PyLayer):
    """Squares, and says the slope were 2.001 x."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensor()
        return g * x * 2.001


class WrongCurvature(PyLayer):
    """Cubes with the right slope, whose own derivative is lost."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensor()
        return g * (x * x * 3).detach()


def test_wrong_gradient_is_found() -> None:
    with pytest.raises(GradientError, match="order 1 for input 0"):
        check_grads(WrongFactor.apply, [double_leaf()], order=1)


def test_wrong_second_derivative_is_found_only_at_second_order() -> None:
    check_grads(WrongCurvature.apply, [double_leaf()], order=1)
    with pytest.raises(GradientError, match="order 2 for input 0"):
        check_grads(WrongCurvature.apply, [double_leaf()], order=2)


def test_missing_gradient_is_found() -> None:
    with pytest.raises(GradientError, match="order 1"):
        check_grads(lambda x: x * x.detach(), [double_leaf()], order=1)


def test_wrong_gradient_of_one_element_of_the_second_input_is_found() -> None:
    class Product(PyLayer):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a * b

        @staticmethod
        def backward(ctx, g):
            a, b = ctx.saved_tensor()
            return g * b, g * a * tensor([1.0, 1.001], "float64")

    with pytest.raises(GradientError, match="for input 1"):
        check_grads(Product.apply, [double_leaf(), tensor([2.0, 3.0], "float64", requires_grad=True)], order=1)


def test_wrong_complex_gradient_is_found() -> None:
    class Forgotten(PyLayer):
        """Multiplies by a complex number and forgets to conjugate it in backward."""

        @staticmethod
        def forward(ctx, z):
            return z * (1 + 2j)

        @staticmethod
        def backward(ctx, g):
            return g * (1 + 2j)

    with pytest.raises(GradientError):
        check_grads(Forgotten.apply, [tensor(np.array([1 + 1j]), requires_grad=True)], order=1)


def test_single_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="float64 or complex128 leaf"):
        check_grads(lambda x: x, [tensor([1.0], requires_grad=True)])


def test_a_formula_that_names_nothing_known_is_refused_at_definition() -> None:
    with pytest.raises(TypeError, match=r"\['y'\]"):
        Signature("square", lambda x: x * x, {"x": lambda g, y: g * y})
    with pytest.raises(TypeError, match="must not name"):
        Signature("square", lambda g: g * g, {})
