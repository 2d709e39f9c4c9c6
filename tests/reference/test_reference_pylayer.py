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
    check_grads,
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
    check_grads(Tanh.apply, [tensor([0.5, 1.0], "float64", requires_grad=True)], order=3)


def test_documented_mark_not_inplace_gives_a_new_output() -> None:
    class Exp(PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.mark_not_inplace(x)
            return x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g.exp()

    x = tensor([[1.0]], requires_grad=True)
    layers = [Exp(), Exp()]
    for _ in range(2):
        a = x
        for layer in layers:
            a = layer.apply(x)
        a.backward()
    np.testing.assert_allclose(x.grad.item(), 5.4366, atol=1e-4)
    assert a is not x
    assert a.storage is x.storage
    assert x.is_leaf
    with pytest.raises(InplaceError, match="view created without recording"):
        a.add_(1.0)


def test_mark_not_inplace_saves_the_input_with_its_own_history() -> None:
    class Same(PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.mark_not_inplace(x)
            ctx.save_for_backward(x)
            return x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensor()
            return g * x

    x = tensor([3.0], requires_grad=True)
    (first,) = grad(Same.apply(x * x), x, create_graph=True)
    assert first.item() == 9.0 * 6.0
    assert grad(first, x)[0].item() == 6.0 * 9.0**0 * 6.0 + 9.0 * 2.0


class DoubleInPlace(PyLayer):
    """Doubles its input in place and returns it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.mul_(2.0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 2


def test_returning_the_input_counts_as_an_inplace_operation() -> None:
    x = tensor([3.0], requires_grad=True)
    a = x * 1
    square = a * a
    version = a._version
    b = DoubleInPlace.apply(a)
    assert b is a
    assert a._version > version
    assert a.grad_fn.name == "DoubleInPlace"
    (a * 5).backward()
    assert x.grad.item() == 10.0
    with pytest.raises(InplaceError, match="modified by an inplace operation"):
        square.backward()


def test_returning_the_input_counts_as_a_write_however_it_was_written() -> None:
    class Unseen(PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            x.carriers()[...] = 7.0
            return x

    x = tensor([3.0], requires_grad=True)
    a = x * 1
    square = a * a
    Unseen.apply(a)
    with pytest.raises(InplaceError):
        square.backward()


def test_input_written_in_place_and_marked_not_inplace_keeps_its_own_history() -> None:
    class Exp(PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.mark_not_inplace(x)
            ctx.save_for_backward(x.exp_())
            return x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (y,) = ctx.saved_tensor()
            return g * y

    x = tensor([1.0], requires_grad=True)
    y = Exp.apply(x)
    y.backward()
    assert y is not x
    assert x.is_leaf
    np.testing.assert_allclose([y.item(), x.grad.item()], np.e, rtol=1e-6)


@pytest.mark.parametrize("view", [False, True])
def test_returning_an_unmarked_leaf_or_view_is_refused(view: bool) -> None:
    x = tensor([3.0], requires_grad=True)
    with pytest.raises(InplaceError, match="mark_not_inplace"):
        DoubleInPlace.apply((x * 1)[0:] if view else x)


def test_documented_mark_non_differentiable_gets_zeros() -> None:
    received = []

    class Two(PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            a = x + x
            b = x + x + x
            ctx.mark_non_differentiable(a)
            return a, b

        @staticmethod
        def backward(ctx: Any, grad_a: Tensor, grad_b: Tensor) -> Tensor:
            received.extend([grad_a.tolist(), grad_b.tolist()])
            return grad_b

    x = tensor([1.0], "float64", requires_grad=True)
    a, b = Two.apply(x)
    assert not a.requires_grad
    b.sum().backward()
    assert received == [[0.0], [1.0]]
    assert x.grad.item() == 1.0


@pytest.mark.parametrize("materialize", [True, False])
def test_documented_set_materialize_grads(materialize: bool) -> None:
    received = []

    class Two(PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            if not materialize:
                ctx.set_materialize_grads(False)
            return x + x + x, x + x

        @staticmethod
        def backward(ctx: Any, first: Tensor, second: Tensor | None) -> Tensor:
            received.append(second if second is None else second.tolist())
            return first

    x = tensor([1.0], "float64", requires_grad=True)
    Two.apply(x)[0].backward()
    assert received == [[0.0] if materialize else None]


@pytest.mark.parametrize("consistent", [True, False])
def test_gradients_are_cast_to_the_type_of_their_output_unless_told_otherwise(consistent: bool) -> None:
    received = []

    class Observe(PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.set_grad_in_dtype_consistent(consistent)
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            received.append(g.dtype.name)
            return g

    class Narrow(PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g.astype("float16")

    x = tensor([1.0], requires_grad=True)
    Narrow.apply(Observe.apply(x)).backward()
    assert received == ["float32" if consistent else "float16"]
    assert x.grad.dtype.name == "float32"


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
    flags = []

    class Mixed(PyLayer):
        @staticmethod
        def forward(ctx: Any, scale: float, parts: list[Tensor], *, extra: Tensor) -> list[Any]:
            flags.append(ctx.needs_input_grad)
            return [parts[0] * scale + parts[1] + extra, "label"]

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
            return g * 2, None, g

    a, c = tensor([1.0], requires_grad=True), tensor([1.0], requires_grad=True)
    out, label = Mixed.apply(2.0, [a, tensor([5.0])], extra=c)
    out.backward()
    assert label == "label"
    assert flags == [(True, False, True)]
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
