"""PyLayer and its context: Paddle's documented examples and meanings, and PyTorch's where they agree."""

from __future__ import annotations

from typing import Any

import pytest

from tensorstash.reference import (
    InplaceError,
    PyLayer,
    Tensor,
    grad,
    saved_tensors_hooks,
    tensor,
)


def test_an_input_that_forward_returns_comes_out_as_another_tensor_over_its_memory() -> None:
    class Same(PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensor()
            return g * x

    x = tensor([3.0], requires_grad=True)
    y = Same.apply(x)
    assert (y is x, y.storage is x.storage, x.is_leaf, y.grad_fn.name) == (False, True, True, "Same")
    with pytest.raises(InplaceError, match="view created without recording"):
        y.add_(1.0)
    (first,) = grad(Same.apply(x * x), x, create_graph=True)  # x squared times 2 x
    assert first.item() == 9.0 * 6.0
    assert grad(first, x)[0].item() == 6.0 * 9.0


@pytest.mark.parametrize("view", [False, True])
def test_writing_to_an_input_in_forward_is_refused(view: bool) -> None:
    class DoubleInPlace(PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.mul_(2.0)

    x = tensor([3.0], requires_grad=True) * 1
    with pytest.raises(InplaceError, match="wrote to its input"):
        DoubleInPlace.apply(x[0:] if view else x)


@pytest.mark.parametrize("hooked", [False, True])
def test_save_for_backward_keeps_none(hooked: bool) -> None:
    found: list[Any] = []

    class Saves(PyLayer):
        @staticmethod
        def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
            ctx.save_for_backward(None, a, b)
            ctx.note = "kept"
            return a * b

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            found.append((ctx.saved_tensor(), ctx.note))
            _, a, b = ctx.saved_tensor()
            return g * b, g * a

    a, b = tensor([2.0], requires_grad=True), tensor([3.0], requires_grad=True)
    packs: list[Tensor] = []
    hooks = saved_tensors_hooks(lambda t: packs.append(t) or t.detach(), lambda t: t)
    if hooked:
        with hooks:
            y = Saves.apply(a, b)
    else:
        y = Saves.apply(a, b)
    y.backward()
    (nothing, first, _), note = found[0]
    assert (nothing, note) == (None, "kept")
    assert (a.grad.item(), b.grad.item()) == (3.0, 2.0)
    assert len(packs) == (2 if hooked else 0)
    assert (first is a) == (not hooked)


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
