"""The blocks of a model that are computed again: the treatment of each, and the warning for those that cannot be."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from itertools import accumulate
from math import inf
from time import perf_counter
from typing import Any

from tensorstash.abilities import Region, Streams
from tensorstash.abilities.checkpoints import ALREADY, CHECKPOINTED
from tensorstash.engine.advice import Adviser
from tensorstash.engine.ladder import Ladder
from tensorstash.engine.ledger import Ledger
from tensorstash.engine.link import PROBE_BYTES, bytes_per_s


def by_treatment(regions: Collection[Region]) -> Mapping[str, tuple[str, ...]]:
    """Return the names of blocks by their treatment."""
    treatments = dict.fromkeys(region.treatment for region in regions)
    return {each: tuple(region.name for region in regions if region.treatment == each) for each in treatments}


def judge_regions(adviser: Adviser, regions: Collection[Region]) -> None:
    """Say once which blocks are stored rather than computed again, and why."""
    for treatment, names in by_treatment([each for each in regions if each.refusal not in (None, "", ALREADY)]).items():
        adviser.say(
            f"blocks {', '.join(names)} are {treatment}. They are left to the rest of the policy. Have them depend on "
            "arguments and weights alone (use_cache=False for Transformers, no hooks), or name others: "
            "Checkpoint(blocks='*.layers.*')"
        )


class Border:
    """Says which blocks, given in the order of their calls, are computed again under a budget: the oldest.

    The first two steps compute all again, and the first has the proofs. The third keeps as many as fit and stores four
    more, where the policy ``may_send``, which tells the rate of stores and what recipes leave. Both are timed.
    From then on the rest of what does not fit leaves, as far as that makes the step shorter.
    """

    def __init__(
        self,
        regions: Mapping[str, Region],
        streams: Streams[Any] | None,
        *,
        may_send: bool,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._regions, self._streams, self._may_send, self._clock = regions, streams, may_send, clock
        self._steps = self._least_bytes = 0
        self._began, self._forward_s = 0.0, inf
        self._scale = 0.0
        """What blocks save in a step and recipes leave, by the bytes of one call; 0 before that is known."""

    def step_ended(self, ladder: Ladder, ledger: Ledger, in_flight_bytes: int) -> None:
        """Plan the next step by the bytes that this one has saved, and by those that may leave behind the program."""
        blocks = [region for region in self._regions.values() if region.refusal == ""]
        there = sum(region.saved_bytes for region in blocks if region.fate != CHECKPOINTED)
        more_bytes = ladder.lasting_bytes - self._least_bytes
        has_grown = more_bytes > self._scale * there
        if not blocks or (not has_grown and self._steps >= 3):  # the plan stands until a step saves more
            return
        self._steps += 1
        if there:
            self._scale = max(self._scale, more_bytes / there)
        else:
            self._least_bytes += max(more_bytes, 0)
        if self._steps <= 3:
            began, self._began = self._began, self._now(ladder.device)
            if self._steps > 1:  # backward takes twice as long as forward, and has all computed again
                self._forward_s = min(self._forward_s, (self._began - began) / 4)  # one may have been held up
        if self._steps == 1:
            return
        sizes = [int((self._scale or 1.0) * region.saved_bytes) for region in blocks]
        ends = [0, *accumulate(sizes)]
        excess_bytes = self._least_bytes + ends[-1] - ladder.limit_bytes
        sent_bytes = 4.0 * max(sizes) * self._may_send
        if self._steps > 2 and self._may_send:
            most_bytes = max(region.saved_bytes for region in blocks)
            taken_bytes = self._forward_s * self._bytes_per_s(ledger, ladder.device, most_bytes)
            hidden, behind = taken_bytes / (ends[-1] or 1), max(1 - excess_bytes / (ends[-1] or 1), 0.0)
            # Beyond a half the program waits less for a byte than it takes to compute it again. Below, what is sent has
            # left when forward ends, and begins behind the blocks that are computed again.
            sent_bytes = inf if hidden >= 0.5 else min(in_flight_bytes, taken_bytes * behind) / (1 - hidden)
        leaving, repeated = bisect_left(ends, excess_bytes), bisect_left(ends, excess_bytes - sent_bytes)
        for place, region in enumerate(blocks):
            region.planned(CHECKPOINTED if place < repeated else "offloaded" if place < leaving else "kept")

    def _now(self, device: str) -> float:
        stream = None if self._streams is None else self._streams.current_stream(device)
        if self._streams is not None and stream is not None:
            self._streams.recorded(stream).synchronize()
        return self._clock()

    def _bytes_per_s(self, ledger: Ledger, device: str, most_bytes: int) -> float:
        stages = [*ledger.snapshot().stages.values()]
        seconds = sum(stage.seconds_in for stage in stages)
        rates = [stages[0].bytes_in / seconds] if seconds else []
        if self._streams is not None and self._streams.current_stream(device) is not None:
            rates.append(bytes_per_s(self._streams, device, min(most_bytes, PROBE_BYTES)))
        return min(rates, default=0.0)
