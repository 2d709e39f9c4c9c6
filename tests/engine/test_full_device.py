"""Copies back to a device that has no memory left."""

import threading

import pytest
from inside import session_of

import tensorstash as ts
import tensorstash.reference as ref
from tensorstash.reference.storage.streams import Event


def step(session, monkeypatch, refusals):
    """Train one step; refuse the next allocations for copies back, and return how many were asked for."""
    streams = session_of(session).backend.streams
    asked, empty = [], type(streams).empty

    def refusing(self, spec):
        asked.append(spec)
        if len(asked) <= refusals:
            raise MemoryError("out of memory")
        return empty(self, spec)

    x = ref.ones((64,), device="sim:0", requires_grad=True)
    with session:
        y = x.exp().exp().exp().exp().sum()
    monkeypatch.setattr(type(streams), "empty", refusing)
    y.backward()
    monkeypatch.setattr(type(streams), "empty", empty)
    return asked, x.grad.to("cpu").numpy().tobytes()


@pytest.fixture
def session():
    limits = ts.Limits(in_flight=0, ahead="1MiB")
    return ts.stash(ts.CpuOffload(), framework="reference", min_bytes=0, limits=limits)


def test_a_refused_copy_is_tried_once_more_when_those_under_way_have_ended(session, monkeypatch):
    _, expected = step(session, monkeypatch, refusals=0)
    asked, found = step(session, monkeypatch, refusals=1)
    assert found == expected
    assert asked[0] == asked[1]
    with pytest.raises(MemoryError):
        step(session, monkeypatch, refusals=2)
    assert step(session, monkeypatch, refusals=0)[1] == expected


def test_after_a_refusal_nothing_is_read_ahead_until_the_next_step(session, monkeypatch):
    for _ in range(3):
        step(session, monkeypatch, refusals=0)
    step(session, monkeypatch, refusals=1)
    transfers = session_of(session).sender.transfers
    assert transfers.near(1) is None
    step(session, monkeypatch, refusals=0)
    assert transfers.near(1) is not None


def test_who_waits_for_copies_keeps_no_other_thread_from_saving(session, monkeypatch):
    def save():
        with session:
            saved.append(ref.ones((64,), device="sim:0", requires_grad=True).exp().exp())

    def synchronize(event):
        if others:
            other = others.pop()
            other.start()
            other.join(60)
            assert not other.is_alive()
        return wait(event)

    saved, wait, others = [], Event.synchronize, [threading.Thread(target=save, daemon=True)]
    save()
    monkeypatch.setattr(Event, "synchronize", synchronize)
    session.drain()
    assert len(saved) == 2
