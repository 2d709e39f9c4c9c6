"""How many blocks are computed again under a budget, by what they save and by what the rest of the policy takes."""

from types import SimpleNamespace

import pytest

from tensorstash.abilities import Region
from tensorstash.engine import checkpoints
from tensorstash.engine.checkpoints import Border, by_treatment
from tensorstash.engine.stats import StageStats, Stats

BLOCKS, BLOCK_BYTES, INPUT_BYTES, SECONDS = 10, 100, 4, 1.0


class Machine:
    """A model whose blocks take a second each, and a store of some rate, in bytes per second."""

    def __init__(self, rate, may_send=True, share=0.0, calls=1, streams=None, in_flight=0):
        self.regions = {str(place): Region(str(place)) for place in range(BLOCKS)}
        for region in self.regions.values():
            region.judged("", BLOCK_BYTES)
        self.now = 0.0
        self.border = Border(self.regions, streams, may_send=may_send, clock=lambda: self.now)
        self.rate, self.share, self.calls, self.in_flight = rate, share, calls, in_flight
        self.sent = 0

    def snapshot(self):
        seconds = self.sent / self.rate if self.rate else 0.0
        return Stats(stages={"disk": StageStats(1, self.sent, self.sent, seconds)} if self.sent else {})

    def numbers(self):
        """Return how many blocks are kept, offloaded and computed again."""
        found = by_treatment(self.regions.values())
        return tuple(len(found.get(fate, ())) for fate in ("kept", "offloaded", "checkpointed"))

    def step(self, budget):
        there = [region for region in self.regions.values() if region.fate != "checkpointed"]
        saved = self.calls * (BLOCKS * INPUT_BYTES + len(there) * BLOCK_BYTES)
        lasting = saved - int(self.share * self.calls * len(there) * BLOCK_BYTES)
        self.sent += max(lasting - budget, 0)
        self.now += 4 * self.calls * BLOCKS * SECONDS  # a forward pass, and a backward that has all computed again
        ladder = SimpleNamespace(lasting_bytes=lasting, limit_bytes=budget, device="sim:0")
        self.border.step_ended(ladder, self, self.in_flight)
        return self.numbers()


@pytest.mark.parametrize(
    ("machine", "budget", "numbers"),
    [
        (Machine(1000), 340, (3, 7, 0)),  # all of the excess leaves while the blocks run
        (Machine(60), 340, (3, 7, 0)),  # the program waits for it, for less time than the blocks take again
        (Machine(40), 340, (3, 0, 7)),  # and for longer here
        (Machine(40, in_flight=100), 340, (3, 1, 6)),  # but not for one block of it
        (Machine(1, in_flight=100), 340, (3, 0, 7)),  # which takes longer than a step
        (Machine(0, in_flight=100), 340, (3, 0, 7)),
        (Machine(1, may_send=False), 340, (3, 0, 7)),  # without a store no more blocks stay than fit
        (Machine(1, share=0.5), 340, (6, 0, 4)),  # what recipes make again need not leave
        (Machine(1), 2000, (BLOCKS, 0, 0)),  # all fits
    ],
)
def test_the_excess_is_sent_as_far_as_that_is_quicker_and_the_oldest_are_computed_again(machine, budget, numbers):
    assert [machine.step(budget) for _ in range(6)][2:] == [numbers] * 4
    assert [name for name, region in machine.regions.items() if region.fate == "checkpointed"] == list(
        map(str, range(numbers[2]))
    )


@pytest.mark.parametrize(("link", "numbers"), [(1000, (3, 7, 0)), (40, (3, 1, 6)), (1, (3, 0, 7))])
def test_the_link_of_a_device_is_measured_where_its_store_seems_faster(monkeypatch, link, numbers):
    waited = []

    class Streams:
        def current_stream(self, device):
            return device

        def recorded(self, stream):
            return SimpleNamespace(synchronize=lambda: waited.append(stream))

    measured = []
    monkeypatch.setattr(checkpoints, "bytes_per_s", lambda streams, *of: measured.append(of) or link)
    machine = Machine(1e12, streams=Streams(), in_flight=100)
    assert [machine.step(340) for _ in range(6)][2:] == [numbers] * 4
    assert measured == [("sim:0", BLOCK_BYTES)]
    assert waited == ["sim:0"] * 3  # at the ends of the steps whose time counts


@pytest.mark.parametrize("held_up", [1, 2])
def test_a_step_that_something_else_holds_up_is_not_taken_for_a_slow_model(held_up):
    machine, found = Machine(40, in_flight=100), []
    for step in range(6):
        machine.now += 1e4 * (step == held_up)
        found.append(machine.step(340))
    assert found[2:] == [(3, 1, 6)] * 4


def test_the_first_steps_compute_all_again_and_the_third_finds_out():
    machine = Machine(40)
    assert machine.numbers() == machine.step(340) == (0, 0, BLOCKS)
    assert machine.step(340) == (3, 4, 3)
    assert machine.sent == 0


def test_a_step_that_saves_more_than_any_before_is_planned_anew():
    machine = Machine(1, may_send=False)
    assert [machine.step(340) for _ in range(4)][-1] == (3, 0, 7)
    machine.calls = 2
    machine.step(340)
    assert machine.step(340)[0] <= 1


def test_blocks_that_are_refused_are_no_part_of_the_plan():
    machine = Machine(1, may_send=False)
    machine.regions["0"].judged("writes its arguments in place")
    machine.step(340)
    machine.step(340)
    assert machine.numbers() == (3, 0, 6)


def step_s(repeated, rate, in_flight):
    """Return the seconds of a step that keeps three blocks and sends the others, but for those computed again."""
    now, ends = 0.0, []
    for place in range(BLOCKS):
        now += SECONDS
        if repeated <= place < BLOCKS - 3:
            ends.append(max([now, *ends[-1:]]) + BLOCK_BYTES / rate)
            while sum(end > now for end in ends) * BLOCK_BYTES > in_flight:
                now = min(end for end in ends if end > now)
    loaded, now = max([now, *ends[-1:]]), now + 3 * 2 * SECONDS
    for _ in ends:
        loaded += BLOCK_BYTES / rate
        now = max(now, loaded) + 2 * SECONDS
    return now + 3 * SECONDS * repeated


@pytest.mark.parametrize("in_flight", [100, 200, 400])
@pytest.mark.parametrize("share", [0.2, 0.5, 1, 2, 4])
def test_a_step_takes_at_most_three_percent_more_than_with_the_best_split(share, in_flight):
    rate = share * BLOCK_BYTES / (3 * SECONDS)  # of what blocks save during a step
    machine = Machine(rate, in_flight=in_flight)
    kept, _, repeated = [machine.step(340) for _ in range(6)][-1]
    best = min(step_s(number, rate, in_flight) for number in range(BLOCKS - 2))
    assert kept == 3
    assert step_s(repeated, rate, in_flight) <= 1.03 * best
