"""The walk: what is accumulated where, what may run twice, what is refused."""

from __future__ import annotations

import pytest

from tensorstash.reference import GraphReleasedError, Tensor, grad, saved_tensors_hooks, tensor, zeros


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


def test_an_unused_input_has_no_gradient() -> None:
    a, b = scalar(2.0), scalar(3.0)
    first, second = grad(a * a, [a, b])
    assert (first.item(), second) == (4.0, None)


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
