"""In-place operations: versions, what is refused, and histories through views."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tensorstash.backends.reference.backend import ReferenceBackend
from tensorstash.reference import InplaceError, Tensor, no_grad, tensor, zeros


def test_views_share_the_version_of_their_storage() -> None:
    x = zeros((2, 3))
    row, alias = x[0], x.detach()
    row.add_(1.0)
    x[1, 2].fill_(5.0)
    assert [ReferenceBackend().version(t) for t in (x, row, alias)] == [2, 2, 2]
    assert x.tolist() == [[1.0, 1.0, 1.0], [0.0, 0.0, 5.0]]
    assert ReferenceBackend().version(x.clone()) == 0


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
        x[0].fill_(3.0)
    with pytest.raises(InplaceError):
        zeros((2,)).requires_grad_().add_(1.0)
    with no_grad():
        x.add_(1.0)
    assert x.tolist() == [2.0, 3.0]
    assert x.is_leaf


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
