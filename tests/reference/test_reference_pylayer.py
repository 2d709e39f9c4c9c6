"""PyLayer and its context: Paddle's documented examples and meanings, and PyTorch's where they agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorstash.reference import (
    GraphReleasedError,
    InplaceError,
    PyLayer,
    Tensor,
    grad,
    is_grad_enabled,
    no_grad,
    saved_tensors_hooks,
    tensor,
)


class Tanh(PyLayer):
    """The documentation's cus_tanh."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.tanh()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (y,) = ctx.saved_tensor()
        return dy * (1 - y * y)


def test_documented_tanh() -> None:
    x = tensor([0.5, 1.0], requires_grad=True)
    Tanh.apply(x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [0.786448, 0.419974], atol=5e-7)


def test_backward_is_differentiable() -> None:
    x = tensor([0.5, 1.0], "float64", requires_grad=True)
    (first,) = grad(Tanh.apply(x).sum(), x, create_graph=True)
    (second,) = grad(first.sum(), x, create_graph=True)
    (third,) = grad(second.sum(), x)
    t = np.tanh([0.5, 1.0])
    np.testing.assert_allclose(second.tolist(), -2 * t * (1 - t**2), rtol=1e-12)
    np.testing.assert_allclose(third.tolist(), (1 - t**2) * (6 * t**2 - 2), rtol=1e-12)


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


def test_outputs_that_no_gradient_reached_get_zeros_and_integers_have_none() -> None:
    received = []

    class Three(PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return x + x, x * 3, x > 0

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            received.extend(g.tolist() for g in gradients)
            return gradients[1]

    x = tensor([1.0], "float64", requires_grad=True)
    doubled, tripled, positive = Three.apply(x)
    assert (doubled.requires_grad, positive.requires_grad) == (True, False)
    tripled.backward()
    assert received == [[0.0], [1.0], [False]]
    assert x.grad.item() == 1.0


@pytest.mark.parametrize("hooked", [False, True])
def test_save_for_backward_keeps_none_and_nesting(hooked: bool) -> None:
    found: list[Any] = []

    class Nested(PyLayer):
        @staticmethod
        def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
            ctx.save_for_backward(None, (a, b), [a, None])
            ctx.note = "kept"
            return a * b

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            found.append((ctx.saved_tensor(), ctx.note))
            _, (a, b), _ = ctx.saved_tensors
            return g * b, g * a

    a, b = tensor([2.0], requires_grad=True), tensor([3.0], requires_grad=True)
    packs: list[Tensor] = []
    hooks = saved_tensors_hooks(lambda t: packs.append(t) or t.detach(), lambda t: t)
    if hooked:
        with hooks:
            y = Nested.apply(a, b)
    else:
        y = Nested.apply(a, b)
    y.backward()
    (nothing, pair, listed), note = found[0]
    assert (nothing, listed[1], note) == (None, None, "kept")
    assert isinstance(pair, tuple)
    assert isinstance(listed, list)
    assert (a.grad.item(), b.grad.item()) == (3.0, 2.0)
    assert len(packs) == (3 if hooked else 0)
    assert (pair[0] is a) == (not hooked)


def test_what_is_no_tensor_cannot_be_saved() -> None:
    class Bad(PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x, 3)
            return x * 1

    with pytest.raises(TypeError, match="got int"):
        Bad.apply(tensor([1.0], requires_grad=True))


def test_nothing_saved_reads_as_an_empty_tuple() -> None:
    found = []

    class Empty(PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            found.append(ctx.saved_tensor())
            return g

    Empty.apply(tensor([1.0], requires_grad=True)).backward()
    assert found == [()]


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


def test_tensors_in_keywords_and_lists_are_inputs_and_other_arguments_are_not() -> None:
    class Mixed(PyLayer):
        @staticmethod
        def forward(ctx: Any, scale: float, parts: list[Tensor], *, extra: Tensor) -> list[Any]:
            return [parts[0] * scale + parts[1] + extra, "label"]

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
            return g * 2, None, g

    a, c = tensor([1.0], requires_grad=True), tensor([1.0], requires_grad=True)
    out, label = Mixed.apply(2.0, [a, tensor([5.0])], extra=c)
    out.backward()
    assert label == "label"
    assert (a.grad.item(), c.grad.item()) == (2.0, 1.0)


def test_forward_is_not_recorded_and_unrecorded_calls_keep_no_history() -> None:
    modes = []

    class Observe(PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            modes.append(is_grad_enabled())
            return x * 1

    x = tensor([1.0], requires_grad=True)
    assert Observe.apply(x).requires_grad
    with no_grad():
        assert not Observe.apply(x).requires_grad
    assert not Observe.apply(tensor([1.0])).requires_grad
    assert modes == [False, False, False]


def test_a_tensor_of_the_outside_that_forward_returns_keeps_its_own_state() -> None:
    weight = tensor([2.0], requires_grad=True)

    class Outside(PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return weight

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 7

    x = tensor([1.0], requires_grad=True)
    y = Outside.apply(x)
    y.backward()
    assert (weight.is_leaf, weight.grad, x.grad.item()) == (True, None, 7.0)
    with pytest.raises(InplaceError):
        y.add_(1.0)


def test_second_backward_raises_and_retain_graph_allows_it() -> None:
    x = tensor([0.5], requires_grad=True)
    y = Tanh.apply(x)
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(GraphReleasedError, match="Trying to backward through the graph a second time"):
        y.backward()
