"""Views and layouts against NumPy, for arbitrary shapes, strides and keys."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorstash.reference import Layout, Parameter, Tensor, no_grad, tensor, zeros

SLICES = [
    *(slice(None), slice(1, None), slice(None, None, 2), slice(-2, 3), slice(3, 1)),
    *(slice(None, None, -1), slice(None, 0, -1), slice(None, None, -2)),
]
SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def numbered(shape: tuple[int, ...]) -> tuple[Tensor, np.ndarray]:
    array = np.arange(float(np.prod(shape))).reshape(shape)
    return tensor(array), array


def assert_same(x: Tensor, array: np.ndarray) -> None:
    assert x.shape == array.shape
    np.testing.assert_array_equal(x.numpy(), array)


@st.composite
def views(draw: st.DrawFn) -> tuple[Tensor, np.ndarray]:
    x, array = numbered(draw(SHAPES))
    for _ in range(draw(st.integers(0, 3))):
        axes = draw(st.permutations(range(array.ndim)))
        x, array = x.permute(*axes), array.transpose(axes)
        key = tuple(draw(st.sampled_from(SLICES)) for _ in range(array.ndim))
        x, array = x[key], array[(*key, ...)]
        assert x.storage is not None
    return x, array


@given(views(), st.data())
@settings(deadline=None, max_examples=60)
def test_reshape_is_a_view_exactly_where_numpy_has_one(pair: tuple[Tensor, np.ndarray], data: st.DataObject) -> None:
    x, array = pair
    factors = [d for d in range(1, 7) if array.size % d == 0] or [1]
    first = data.draw(st.sampled_from(factors))
    shape = data.draw(st.sampled_from([(-1, first), (first, -1), (1, -1, first, 1), (-1,)])) if array.size else (0, 3)
    assert_same(x.reshape(*shape), array.reshape(shape))
    expected = np.shares_memory(array, array.reshape(shape)) if array.size else True
    assert (x.reshape(*shape).storage is x.storage) == expected
    if expected:
        assert_same(x.view(*shape), array.reshape(shape))
    else:
        with pytest.raises(ValueError, match="use reshape"):
            x.view(*shape)


def test_overlap_is_recognised() -> None:
    assert Layout((2, 3), (0, 1), 0, 4).may_overlap
    assert Layout((3, 3), (1, 1), 0, 4).may_overlap
    assert not Layout((3, 1), (1, 0), 0, 4).may_overlap
    assert not Layout((2, 3), (3, 1), 0, 4).may_overlap
    assert not Layout((0, 3), (0, 0), 0, 4).may_overlap


def test_bases_name_the_owner_of_the_memory() -> None:
    weight = Parameter(zeros((2, 3)))
    with no_grad():
        unrecorded = weight[0]
    for view in (weight.swap_last(), weight[0][1:], weight.detach(), weight.detach()[0], unrecorded, unrecorded[1:]):
        assert view._base is weight
    assert weight._base is None
    assert weight.clone()._base is None
    activation = weight * 1
    assert activation[0][1:]._base is activation
    assert activation.detach()._base is None
