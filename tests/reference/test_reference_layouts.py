"""Layouts that overlap, and whose memory a view shows."""

from __future__ import annotations

from tensorstash.reference import Layout, Parameter, no_grad, zeros


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
        assert view.base is weight
    assert weight.base is None
    assert weight.clone().base is None
    activation = weight * 1
    assert activation[0][1:].base is activation
    assert activation.detach().base is None
