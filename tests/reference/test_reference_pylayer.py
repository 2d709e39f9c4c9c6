"""What a PyLayer may not do."""

from __future__ import annotations

from typing import Any

import pytest

from tensorstash.reference import InplaceError, PyLayer, Tensor, tensor


@pytest.mark.parametrize("view", [False, True])
def test_writing_to_an_input_in_forward_is_refused(view: bool) -> None:
    class DoubleInPlace(PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.mul_(2.0)

    x = tensor([3.0], requires_grad=True) * 1
    with pytest.raises(InplaceError, match="wrote to its input"):
        DoubleInPlace.apply(x[0:] if view else x)


def test_an_input_that_forward_returns_is_refused() -> None:
    class Same(PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x

    with pytest.raises(ValueError, match=r"Same.forward returned its input"):
        Same.apply(tensor([3.0], requires_grad=True))


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (lambda g: (g, g), ValueError, "returned 2 gradients for 1 input"),
        (lambda g: (), ValueError, "returned 0 gradients for 1 input"),
        (lambda g: g.sum(), ValueError, r"a gradient of shape \(\) on cpu; expected \(2,\)"),
        (lambda g: g.to("sim:0"), ValueError, "on sim:0"),
        (lambda g: 3.0, TypeError, "a float; expected a tensor or None"),
    ],
)
def test_wrong_gradients_are_refused(returned: Any, error: type[Exception], message: str) -> None:
    class Wrong(PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return returned(g)

    with pytest.raises(error, match=message):
        Wrong.apply(tensor([1.0, 2.0], requires_grad=True)).sum().backward()
