"""In-place operations: versions, what is refused, and histories through views."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tensorstash.reference import InplaceError, Tensor, grad, no_grad, tensor, zeros


def test_views_share_the_version_of_their_storage() -> None:
    x = zeros((2, 3))
    row, alias = x[0], x.detach()
    row.add_(1.0)
    x[1, 2] = 5.0
    assert [t._version for t in (x, row, alias)] == [2, 2, 2]
    assert x.tolist() == [[1.0, 1.0, 1.0], [0.0, 0.0, 5.0]]
    assert x.clone()._version == 0


def test_modified_saved_tensor_is_reported_with_both_versions() -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    a = x * 1
    a.add_(1.0).add_(1.0)
    y = a * a
    a.add_(1.0)
    message = (
        r"one of the variables needed for gradient computation has been modified by an inplace operation: "
        r"\[float32 \[2\]\], which is output 0 of add, is at version 3; expected version 2 instead"
    )
    with pytest.raises(InplaceError, match=message):
        y.sum().backward()


@pytest.mark.parametrize(
    "modify",
    [
        lambda y: y.mul_(0.0),
        lambda y: y[0:1].fill_(0),
        lambda y: y.detach().add_(1.0),
        lambda y: y.copy_(tensor([1.0, 1.0])),
        lambda y: y.__setitem__(0, 3.0),
    ],
)
def test_every_way_of_writing_to_a_saved_output_is_noticed(modify: Callable[[Tensor], object]) -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    y = x.exp()
    z = y.sum()
    modify(y)
    with pytest.raises(InplaceError, match="modified by an inplace operation"):
        z.backward()


def test_leaf_that_requires_grad_is_refused_but_may_change_unrecorded() -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(InplaceError, match="a leaf tensor that requires grad"):
        x.add_(1.0)
    with pytest.raises(InplaceError, match="a view of a leaf"):
        x[0] = 3.0
    with pytest.raises(InplaceError):
        zeros((2,)).requires_grad_().add_(1.0)
    with no_grad():
        x.add_(1.0)
    assert x.tolist() == [2.0, 3.0]
    assert x.is_leaf


def test_view_made_unrecorded_is_refused_when_recording() -> None:
    a = tensor([1.0, 2.0], requires_grad=True) * 1
    with no_grad():
        view = a[0]
        further = view.reshape(1)
    for target in (view, further, view.reshape(1)):
        with pytest.raises(InplaceError, match="view created without recording"):
            target.add_(a[1])
    with no_grad():
        view.add_(1.0)
    assert a.tolist() == [2.0, 2.0]


def test_overlapping_memory_is_refused() -> None:
    with pytest.raises(InplaceError, match="single memory location"):
        zeros((1, 3)).expand(2, 3).add_(1.0)
    with pytest.raises(InplaceError, match="single memory location"):
        zeros((5,)).as_strided((3, 3), (1, 1)).add_(1.0)


def test_result_must_fit_in_shape_and_type() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        zeros((1, 3)).add_(zeros((2, 3)))
    with pytest.raises(ValueError, match="float32 cannot be stored as int64"):
        zeros((2,), "int64").add_(0.5)
    assert zeros((2,), "int64").fill_(2.5).tolist() == [2, 2]
    narrow = zeros((2,), "float16").copy_(tensor([0.5, 1.0], "float64"))
    assert (narrow.dtype.name, narrow.tolist()) == ("float16", [0.5, 1.0])


def test_operation_may_save_its_own_target() -> None:
    x, w = tensor([3.0], requires_grad=True), tensor([2.0], requires_grad=True)
    a = x * 1
    a.mul_(w).exp_()
    a.backward()
    np.testing.assert_allclose([x.grad.item(), w.grad.item()], np.exp(6) * np.array([2, 3]), rtol=1e-6)


def test_view_made_before_an_inplace_write_to_its_base_follows() -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    base = x * 1
    view = base[0]
    base.mul_(3.0)
    assert view.grad_fn.name == "restride"
    assert grad(view, x)[0].tolist() == [3.0, 0.0]


def test_view_of_a_constant_that_takes_a_history_requires_grad() -> None:
    w = tensor([4.0], requires_grad=True)
    base = zeros((2, 2))
    row, other = base[0], base[1]
    row.add_(w)
    assert base.requires_grad
    assert other.requires_grad
    assert row.requires_grad
    (base.sum() + row.sum() * 10 + other.sum()).backward()
    assert w.grad.item() == 22.0


def test_written_region_passes_no_gradient_to_what_it_replaced() -> None:
    x, w = tensor([1.0, 2.0, 3.0], requires_grad=True), tensor(5.0, requires_grad=True)
    a = x * 2
    a[1] = w
    a[2:] = 7.0
    first, second = grad((a * a).sum(), (x, w))
    assert first.tolist() == [8.0, 0.0, 0.0]
    assert second.item() == 10.0


def test_write_through_a_view_of_a_view_reaches_the_base() -> None:
    x = tensor(np.arange(6.0).reshape(2, 3), requires_grad=True)
    base = x * 1
    base.swap_last()[1:].reshape(2, 2)[0].mul_(10.0)
    expected = np.ones((2, 3))
    expected[:, 1] = 10.0
    np.testing.assert_array_equal(grad(base.sum(), x)[0].numpy(), expected)


def test_detached_alias_takes_a_history_of_its_own() -> None:
    x, w = tensor([1.0], requires_grad=True), tensor([2.0], requires_grad=True)
    a = x * 1
    alias = a.detach()
    alias.mul_(w)
    assert a.grad_fn.name == "mul"
    assert grad(alias, w)[0].item() == 1.0
    assert a.item() == 2.0


def test_augmented_assignment_is_in_place() -> None:
    a = zeros((2,))
    same = a
    a += 4.0
    a -= 1.0
    a *= 4.0
    a /= 3.0
    assert same is a
    assert a.tolist() == [4.0, 4.0]
    assert a._version == 4


def test_copy_brings_elements_from_another_device() -> None:
    a = zeros((2, 2), "float64", device="sim:1")
    a.copy_(tensor([1.0, 2.0]))
    assert a.tolist() == [[1.0, 2.0], [1.0, 2.0]]
