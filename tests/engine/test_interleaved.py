"""Which views of one memory have certainly no element in common."""

from itertools import product

import hypothesis.strategies as st
from hypothesis import given

from tensorstash.engine.payloads.interleaved import InterleavedView
from tensorstash.spec import TensorSpec


def strip(shape, strides, start=0):
    return InterleavedView.of(TensorSpec(shape, strides, 4 * start, "float32", "cpu"), 4 * start)


def elements(shape, strides, start):
    return {
        start + sum(i * stride for i, stride in zip(index, strides, strict=True))
        for index in product(*map(range, shape))
    }


@st.composite
def views(draw):
    """Views of one memory whose dimensions are often of equal strides."""
    dims = draw(
        st.lists(st.tuples(st.integers(1, 4), st.sampled_from([0, 1, 2, 3, 4, 6, 12, 24])), min_size=1, max_size=3)
    )
    shape, strides = zip(*dims, strict=True)
    return shape, strides, draw(st.integers(0, 24))


@given(first=views(), second=views())
def test_what_is_apart_shares_no_element(first, second):
    ours, theirs = (strip(*view) for view in (first, second))
    if ours is None or theirs is None:
        return
    assert ours.start + (ours.block[0][0] - 1) * ours.block[0][1] < ours.stop(0)
    assert ours.is_apart(theirs) == theirs.is_apart(ours)
    if ours.is_apart(theirs):
        assert not elements(*first) & elements(*second)


def test_interleaved_columns_are_apart_and_so_are_columns_of_columns():
    query, key = strip((8, 4), (12, 1), 0), strip((8, 4), (12, 1), 4)
    left, right = strip((8, 2), (12, 1), 8), strip((8, 2), (12, 1), 10)
    even, odd = strip((8, 2), (12, 2), 8), strip((8, 2), (12, 2), 9)
    cropped = [strip((2, 3, 4), (48, 12, 1), start) for start in (0, 4, 8)]
    for ours, theirs in [
        (query, key),
        (key, left),
        (left, right),
        (query, even),
        (even, odd),
        (cropped[0], cropped[2]),
    ]:
        assert ours.is_apart(theirs)


def test_what_overlaps_or_cannot_be_told_is_not_apart():
    one = strip((8, 4), (12, 1), 4)
    for other in [
        strip((8, 4), (12, 1), 4),
        strip((8, 4), (12, 1), 7),
        strip((8, 1), (12, 1), 7),
        strip((7, 4), (12, 1), 8),  # is apart, but of another length
        strip((8, 4), (12, 1), 13),  # the next line's
        strip((8, 4), (12, 1), 100),
    ]:
        assert not one.is_apart(other)
    # The inner dimension's repetitions are side by side, those of the outer one are not.
    assert not strip((2, 3), (9, 4), 0).is_apart(strip((2, 3), (9, 4), 1))


def test_a_run_of_memory_is_no_strip():
    assert strip((8, 4), (4, 1)) is strip((4,), (1,)) is strip((), ()) is strip((0, 4), (9, 1)) is None
    assert strip((1, 4), (9, 1)) is strip((5, 3), (1, 1)) is strip((3, 4), (0, 1)) is None
    assert InterleavedView.of(TensorSpec((5,), (2,), 6, "float32", "cpu"), 6) is None  # not a whole number of elements
