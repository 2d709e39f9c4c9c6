"""The walk: what is accumulated where, what may run twice, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from tensorstash.reference import (
    GraphReleasedError,
    Tensor,
    backward,
    enable_grad,
    grad,
    is_grad_enabled,
    no_grad,
    saved_tensors_hooks,
    set_grad_enabled,
    tensor,
    zeros,
)


def scalar(value: float) -> Tensor:
    return tensor(value, "float64", requires_grad=True)


def test_gradients_of_all_paths_and_of_repeated_backwards_add_up() -> None:
    x = scalar(3.0)
    y = x * x
    z = y * x + y
    z.backward(retain_graph=True)
    assert x.grad.item() == 33.0
    before = x.grad
    z.backward()
    assert x.grad.item() == 66.0
    assert x.grad is before


def test_second_backward_says_what_to_do() -> None:
    x = scalar(3.0)
    y = x * x
    y.backward()
    with pytest.raises(GraphReleasedError, match=r"second time.*retain_graph=True"):
        y.backward()
    z = x + x
    z.backward()
    z.backward()
    assert x.grad.item() == 10.0


def test_gradients_of_two_leaves_do_not_share_memory() -> None:
    a, b = scalar(1.0), scalar(2.0)
    (a + b).backward()
    a.grad.mul_(5.0)
    assert b.grad.item() == 1.0
    seed = tensor([1.0, 1.0])
    c = tensor([1.0, 2.0], requires_grad=True)
    (c + 0.0).backward(seed)
    c.grad.mul_(5.0)
    assert seed.tolist() == [1.0, 1.0]


def test_grad_of_intermediate_and_leaf_at_once() -> None:
    a = scalar(2.0)
    middle = a * a
    y = middle * a
    first, second = grad(y, [middle, a], retain_graph=True)
    assert (first.item(), second.item(), a.grad) == (2.0, 12.0, None)
    (alone,) = grad(y, middle)
    assert alone.item() == 2.0
    (itself,) = grad(a * 1, a)
    assert itself.item() == 1.0


def test_nodes_that_lead_to_no_wanted_input_do_not_run() -> None:
    a, b = scalar(2.0), scalar(3.0)
    ran = []

    def unpack(t: Tensor) -> Tensor:
        ran.append(t.item())
        return t

    with saved_tensors_hooks(lambda t: t.detach(), unpack):
        middle = a.exp()
        y = middle * b.exp()
    grad(y, middle)
    assert np.exp(2.0) in ran
    assert len(ran) == 2


def test_unused_input_raises_unless_allowed() -> None:
    a, b = scalar(2.0), scalar(3.0)
    y = a * a
    with pytest.raises(RuntimeError, match="not have been used"):
        grad(y, [a, b], retain_graph=True)
    first, second = grad(y, [a, b], allow_unused=True)
    assert (first.item(), second) == (4.0, None)


def test_several_outputs_and_their_gradients() -> None:
    a = scalar(2.0)
    (total,) = grad([a * a, a * 3], a, [tensor(10.0, "float64"), None])
    assert total.item() == 43.0
    backward([a * a, a * 3])
    assert a.grad.item() == 7.0


def test_what_cannot_be_differentiated_is_refused() -> None:
    with pytest.raises(RuntimeError, match="does not require grad"):
        zeros((1,)).backward()
    with pytest.raises(RuntimeError, match="outputs of one element"):
        zeros((2,), requires_grad=True).exp().backward()
    with pytest.raises(RuntimeError, match="must match it"):
        zeros((2,), requires_grad=True).exp().backward(zeros((3,)))
    with pytest.raises(RuntimeError, match="does not require grad"):
        grad(scalar(1.0) * 1, zeros((1,)))
    with pytest.raises(RuntimeError, match="only floating point tensors"):
        zeros((1,), "int64", requires_grad=True)
    with pytest.raises(RuntimeError, match="requires_grad of a leaf"):
        (scalar(1.0) * 1).requires_grad_(False)


def test_nodes_run_latest_recorded_first() -> None:
    order = []
    x = tensor([1.0], requires_grad=True)
    ys = []
    for name in "abc":
        with saved_tensors_hooks(lambda t: t.detach(), lambda t, name=name: order.append(name) or t):
            ys.append(x.exp())
    (ys[1] + ys[0] + ys[2]).backward()
    assert order == ["c", "b", "a"]


def test_higher_derivatives() -> None:
    x = scalar(2.0)
    y = x**4
    values = []
    for _ in range(4):
        (y,) = grad(y, x, create_graph=True)
        values.append(y.item())
    assert values == [32.0, 48.0, 48.0, 24.0]


def test_without_create_graph_gradients_have_no_history() -> None:
    x = scalar(2.0)
    seed = scalar(1.0)
    (first,) = grad(x * 1, x, seed)
    assert not first.requires_grad
    (x * 1).backward(seed)
    assert not x.grad.requires_grad


def test_recording_mode_is_restored_after_errors() -> None:
    with pytest.raises(ZeroDivisionError), no_grad(), enable_grad(), set_grad_enabled(False):
        raise ZeroDivisionError
    assert is_grad_enabled()


def test_recording_mode_works_as_a_decorator_more_than_once() -> None:
    @no_grad()
    def product(x: Tensor) -> Tensor:
        return x * x

    assert not product(scalar(2.0)).requires_grad
    assert not product(scalar(2.0)).requires_grad
    assert (scalar(2.0) * 1).requires_grad


def test_broadcast_gradients_are_summed_to_the_operand() -> None:
    a, b = tensor(np.ones((2, 1, 3)), requires_grad=True), tensor(np.ones((4, 1)), requires_grad=True)
    ((a * b) * tensor(np.arange(24.0).reshape(2, 4, 3))).sum().backward()
    np.testing.assert_array_equal(a.grad.numpy(), np.arange(24.0).reshape(2, 4, 3).sum(1, keepdims=True))
    np.testing.assert_array_equal(b.grad.numpy(), np.arange(24.0).reshape(2, 4, 3).sum((0, 2))[:, None])


def test_gradients_come_in_the_type_of_the_tensor() -> None:
    x = tensor([1.5], "bfloat16", requires_grad=True)
    x.astype("float64").backward(tensor([2.0]))
    assert (x.grad.dtype.name, x.grad.item()) == ("bfloat16", 2.0)
