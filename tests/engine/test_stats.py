"""Statistics are values: they can be subtracted, logged, pickled and copied."""

import copy
import pickle

import tensorstash as ts
from tensorstash import reference as ref


def session_of(steps):
    session = ts.stash("compress", framework="reference", min_bytes=8)
    snapshots = []
    for _ in range(steps):
        with session as entered:
            loss = (ref.tensor([[1.0, 2.0]], requires_grad=True).exp().tanh() * 2.0).sum()
        entered.drain()
        loss.backward()
        snapshots.append(session.stats())
    return snapshots


def test_later_minus_earlier_is_what_was_done_in_between():
    first, second = session_of(2)
    step = second - first
    assert step.seen == first.seen
    assert step.stashed == first.stashed
    assert dict(step.kept) == dict(first.kept)
    assert step.unpacked == first.unpacked
    assert step.peak_bytes == second.peak_bytes
    assert (second - second).scalars()["tensorstash/seen/tensors"] == 0
    assert not (second - second).kept


def test_pickles_and_copies_are_equal():
    (stats,) = session_of(1)
    assert pickle.loads(pickle.dumps(stats)) == stats
    assert copy.deepcopy(stats) == stats
    assert pickle.loads(pickle.dumps(stats)).to_dict() == stats.to_dict()


def test_scalars_are_flat_numbers():
    (stats,) = session_of(1)
    scalars = stats.scalars("stash/")
    assert scalars["stash/stashed/nbytes"] == stats.stashed.nbytes
    assert all(type(value) is float and name.startswith("stash/") for name, value in scalars.items())
    assert not any("advice" in name for name in scalars)
