"""In-place operations: versions, what is refused, and histories through views."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tensorstash.reference import InplaceError, Parameter, Tensor, no_grad, tensor, zeros


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
        lambda y: y.detach()[0:1].mul_(0.0),
    ],
)
def test_every_way_of_writing_to_a_saved_output_is_noticed(modify: Callable[[Tensor], object]) -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    y = x.exp()
    z = y.sum()
    modify(y)
    with pytest.raises(InplaceError, match="modified by an inplace operation"):
        z.backward()


def test_leaves_that_require_grad_and_views_may_change_unrecorded_only() -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    for target, kind in ((x, "a leaf tensor"), (x[0], "a view"), ((x * 1)[0], "a view")):
        with pytest.raises(InplaceError, match=f"{kind}.* is being used in an in-place operation"):
            target.add_(1.0)
    with no_grad():
        x[0].add_(1.0)
    assert x.tolist() == [2.0, 2.0]
    assert x.is_leaf


def test_a_view_of_a_tensor_that_has_got_another_history_is_refused() -> None:
    x = tensor([1.0, 2.0], requires_grad=True) * 1
    view = x[0]
    x.mul_(2.0)
    with pytest.raises(InplaceError, match="view it again"):
        view.exp()
    assert x[0].exp().requires_grad


def test_overlapping_memory_is_refused() -> None:
    with pytest.raises(InplaceError, match="single memory location"):
        zeros((1, 3)).expand(2, 3).add_(1.0)
    with pytest.raises(InplaceError, match="single memory location"):
        zeros((5,)).as_strided((3, 3), (1, 1)).add_(1.0)
    assert zeros((6,)).as_strided((3, 1), (1, 0)).add_(1.0).tolist() == [[1.0]] * 3


def test_result_must_fit_in_shape_and_type() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        zeros((1, 3)).add_(zeros((2, 3)))
    with pytest.raises(TypeError, match=r"add got 0.5 and a tensor of int64"):
        zeros((2,), "int64").add_(0.5)


def test_bases_name_the_owner_of_the_memory() -> None:
    weight = Parameter(zeros((2, 3)))
    with no_grad():
        unrecorded = weight[0]
    for view in (weight.swap_last(), weight[0][1:], weight.detach(), weight.detach()[0], unrecorded, unrecorded[1:]):
        assert view.base is weight
    assert weight.base is None
    assert weight.clone().base is None
    activation = weight * 1
    assert activation[0][1:].base is activation
    assert activation.detach().base is None
