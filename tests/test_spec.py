"""The arithmetic of strides, against every address counted one by one."""

import pickle
from dataclasses import replace
from itertools import pairwise, product

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from tensorstash.spec import TensorSpec, contiguous_strides, memory_order

layouts = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12)), max_size=4).map(
    lambda dims: (tuple(size for size, _ in dims), tuple(stride for _, stride in dims))
)


def addresses(shape, strides):
    """Every address of a strided tensor, in the order of its indices, repetitions included."""
    places = product(*(range(size) for size in shape))
    return [sum(at * stride for at, stride in zip(place, strides, strict=True)) for place in places]


@given(layouts)
def test_memory_order_visits_every_element_once_at_ascending_addresses(layout):
    order = memory_order(*layout)
    wanted = sorted(set(addresses(*layout)))
    visited = addresses(order.shape, order.strides)
    assert visited == sorted(set(visited))
    assert order.span == (wanted[-1] + 1 if wanted else 0)
    # Where dimensions overlap, the gaps are visited too.
    assert visited in (wanted, list(range(order.span)))
    assert order.is_dense == (visited == list(range(order.span)))
    if len(set(addresses(*layout))) == len(addresses(*layout)) and order.strides != (1,):
        assert visited == wanted


@given(layouts)
@example(((2, 3, 4), (12, 4, 1)))
@example(((4, 6), (1, 4)))
def test_a_block_names_the_elements_and_not_their_shape(layout):
    block = memory_order(*layout).block
    order = memory_order(*layout)
    sizes, strides = tuple(size for size, _ in block), tuple(stride for _, stride in block)
    assert addresses(sizes, strides) == addresses(order.shape, order.strides)
    # No two neighbours of it could be one.
    assert all(one[1] != other[0] * other[1] for one, other in pairwise(block))


@given(st.lists(st.integers(0, 4), max_size=4).map(tuple))
def test_contiguous_strides_are_those_of_a_dense_tensor(shape):
    strides = contiguous_strides(shape)
    assert addresses(shape, strides) == list(range(len(addresses(shape, strides))))
    assert all(stride > 0 for stride in strides)


def test_what_codecs_see_of_a_tensor_is_dense_and_keeps_what_selectors_look_at():
    spec = TensorSpec((3, 4, 5), (1, 0, 3), 8, "float32", "cuda:0", 16, True, True, "layers.1")
    dense = TensorSpec((5, 3), (3, 1), 0, "float32", "cuda:0", module="layers.1")
    assert spec.dense() == dense


def test_a_shape_with_other_dimensions_than_its_strides_is_refused():
    with pytest.raises(ValueError, match="a shape of 2 dimensions with 1 strides"):
        TensorSpec((2, 3), (1,), 0, "float32", "cpu")
    with pytest.raises(KeyError):
        TensorSpec((2,), (1,), 0, "float23", "cpu")


def test_the_layout_of_a_spec_is_worked_out_once_and_is_no_part_of_its_value():
    spec, other = (TensorSpec((3, 4, 5), (1, 0, 3), 8, "float32", "cpu") for _ in range(2))
    assert spec.order is spec.order
    assert spec.dense() is spec.dense()
    assert (spec, hash(spec), repr(spec)) == (other, hash(other), repr(other))
    assert replace(spec, shape=(3, 4, 2)).order.shape == (2, 3)
    assert pickle.loads(pickle.dumps(spec)).dense() == spec.dense()
