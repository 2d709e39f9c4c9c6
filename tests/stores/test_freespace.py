"""The allocator against a map of single bytes, and what it promises about growth."""

import hypothesis.strategies as st
from hypothesis import given, settings

from tensorstash.host.free_space import FreeSpace

SIZE = 64


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(("take", "give")), st.integers(1, 20)), max_size=40))
def test_extents_never_overlap_and_neighbours_are_joined(program):
    space, taken, free = FreeSpace(), [], [True] * SIZE
    space.give(0, SIZE)

    def runs():
        found, start = [], None
        for at, is_free in enumerate([*free, False]):
            if is_free and start is None:
                start = at
            elif not is_free and start is not None:
                found.append((start, at - start))
                start = None
        return found

    for what, number in program:
        if what == "give" and taken:
            start, size = taken.pop(number % len(taken))
            assert not any(free[start : start + size])
            free[start : start + size] = [True] * size
            space.give(start, size)
        elif what == "take":
            start = space.take(number)
            fitting = [size for _, size in runs() if size >= number]
            if start is None:
                assert not fitting
                continue
            assert (start, min(fitting)) in runs()
            free[start : start + number] = [False] * number
            taken.append((start, number))
        assert space.free_bytes == sum(free)
        assert space.largest == max((size for _, size in runs()), default=0)
        last = runs()[-1] if runs() else (0, 0)
        assert space.free_before(SIZE) == (last[1] if sum(last) == SIZE else 0)
    for start, size in taken:
        space.give(start, size)
    assert space.take(SIZE) == 0
    assert space.free_bytes == 0
