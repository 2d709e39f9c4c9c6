"""The advice where the link of a device sets the pace."""

import pytest

from tensorstash.engine import link
from tensorstash.engine.link import pace

GIB = 2**30


@pytest.mark.parametrize(
    ("rate", "sent", "said"),
    [
        (50 * GIB, GIB, 0),  # 20 ms of a step of 3 s
        (GIB / 2, GIB, 1),  # 2 s of it
        (GIB / 2, 2**20, 0),  # hardly anything is sent
        (0.0, GIB, 0),  # nobody knows
    ],
)
def test_a_link_that_takes_longer_than_a_third_of_a_step_is_named_once(monkeypatch, rate, sent, said):
    times = iter(range(0, 300, 3))
    monkeypatch.setattr(link, "perf_counter", lambda: next(times))
    monkeypatch.setattr(link, "bytes_per_s", lambda streams, device, nbytes: rate)
    counts, messages = {"cuda:1": 0}, []
    steps = pace(None, counts, messages.append)
    for _ in range(8):
        counts["cuda:1"] += sent
        next(steps, None)
    assert len(messages) == said
    assert all("the link of cuda:1 sets the pace" in each and "checkpoint" in each for each in messages)
