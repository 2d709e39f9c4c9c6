"""The blocks of a model that are computed again: the treatment of each, and the warning for those that cannot be."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any

from tensorstash.abilities import Region, Streams
from tensorstash.abilities.checkpoints import CHECKPOINTED, NOT_REPEATED
from tensorstash.engine.advice import Adviser
from tensorstash.engine.ladder import Ladder
from tensorstash.engine.ledger import Ledger
from tensorstash.engine.link import PROBE_BYTES, bytes_per_s
from tensorstash.engine.stats import Stats


def by_treatment(regions: Iterable[Region]) -> Mapping[str, tuple[str, ...]]:
    """Return the names of blocks by their treatment."""
    found: dict[str, tuple[str, ...]] = {}
    for region in regions:
        found[region.treatment] = (*found.get(region.treatment, ()), region.name)
    return found


def judge_regions(adviser: Adviser, regions: Iterable[Region]) -> None:
    """Say once which blocks are stored rather than computed again, and why."""
    for treatment, names in by_treatment(regions).items():
        if treatment.startswith(NOT_REPEATED):
            adviser.say(
                f"{len(names)} blocks are {treatment} ({', '.join(names)}). They are left to the rest of the policy. "
                "Have them depend on arguments and weights alone (use_cache=False for Transformers), or name others: "
                "Checkpoint(blocks='*.layers.*')"
            )


def oldest_to_repeat(
    block_bytes: Sequence[int],
    excess_bytes: int,
    seconds: float = 0.0,
    bytes_per_s: float = 0.0,
    in_flight_bytes: int = 0,
) -> int:
    """Return how many of the oldest blocks are computed again, so that no excess is left and a step is shortest.

    The rest of the excess leaves while the blocks that have saved it run, but for the bytes that may be in flight, and
    all of it before forward ends, which takes the blocks these ``seconds``. The program waits for the rest. Where
    stores take no bytes per second, nothing leaves.

    >>> [oldest_to_repeat([10] * 4, 20, 4.0, rate) for rate in (0, 4, 6, 20)]
    [2, 2, 0, 0]
    >>> oldest_to_repeat([10] * 4, 20, 4.0, 3, in_flight_bytes=10), oldest_to_repeat([10], 15)
    (1, 1)
    """
    block_s = seconds / (sum(block_bytes) or 1)

    def cost(number: int) -> tuple[int, float]:
        again_bytes = sum(block_bytes[:number])
        sent_bytes, again_s = max(excess_bytes - again_bytes, 0), again_bytes * block_s
        if not bytes_per_s:
            return sent_bytes, again_s
        awaited_s = max(sent_bytes - in_flight_bytes, 0) / bytes_per_s
        return 0, again_s + max(awaited_s - sent_bytes * block_s, sent_bytes / bytes_per_s + again_s - seconds, 0.0)

    return min(range(len(block_bytes) + 1), key=cost)


class Border:
    """Says which blocks, given in the order of their calls, are computed again under a budget.

    The first two steps compute all of them again; the second is timed, since the first has the proofs. The third keeps
    as many as fit and stores four more, where the policy ``may_send``: that tells the bytes that recipes save and the
    rate of the stores. From then on the oldest are computed again, as many as makes the step shortest.
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
        self._steps = 0
        self._began = self._seconds = 0.0
        """That the second step took forward."""
        self._least_bytes = 0
        """Saved where all blocks are computed again."""
        self._scale = 0.0
        """Saved by blocks in a step, by the bytes of one call; 0 before that is known."""
        self._staying = 1.0
        """Left of that by recipes."""
        self._remade_bytes = 0
        self._link_bytes_per_s = 0.0

    def passed(self, device: str, *, is_end: bool) -> None:
        """Note the beginning or the end of an entry in the step that is timed."""
        if self._regions and self._steps == 1:
            stream = None if self._streams is None else self._streams.current_stream(device)
            if self._streams is not None and stream is not None:
                self._streams.recorded(stream).synchronize()
            began, self._began = self._began, self._clock()
            self._seconds += self._began - began if is_end else 0.0

    def step_ended(self, ladder: Ladder, ledger: Ledger, in_flight_bytes: int) -> None:
        """Plan the next step by the bytes that this one has saved, and by those that may leave behind the program."""
        blocks = [region for region in self._regions.values() if region.is_repeated]
        there = sum(region.saved_bytes for region in blocks if region.fate != CHECKPOINTED)
        more_bytes = ladder.saved_bytes - self._least_bytes
        has_grown = more_bytes > self._scale * there
        if not blocks or (not has_grown and self._steps >= 3):  # the plan stands until a step saves more
            return
        self._steps += 1
        stats = ledger.snapshot()
        before, self._remade_bytes = self._remade_bytes, sum(stage.bytes_in for stage in stats.recomputed.values())
        if not there:
            self._least_bytes += max(more_bytes, 0)
        elif has_grown:
            if not self._scale:
                self._staying = 1 - min((self._remade_bytes - before) / more_bytes, 1.0)
            self._scale = more_bytes / there
        if self._steps == 1:
            return
        sizes = [int((self._scale or 1.0) * self._staying * region.saved_bytes) for region in blocks]
        excess_bytes = self._least_bytes + sum(sizes) - ladder.limit_bytes
        if self._steps == 2 or not self._may_send:
            number = oldest_to_repeat(sizes, excess_bytes - 4 * max(sizes) * self._may_send)
        else:
            rate = self._bytes_per_s(stats, ladder.device, max(region.saved_bytes for region in blocks))
            number = oldest_to_repeat(sizes, excess_bytes, self._seconds, rate, in_flight_bytes)
        sent = number + oldest_to_repeat(sizes[number:], excess_bytes - sum(sizes[:number]))
        for place, region in enumerate(blocks):
            region.planned(CHECKPOINTED if place < number else "offloaded" if place < sent else "kept")

    def _bytes_per_s(self, stats: Stats, device: str, most_bytes: int) -> float:
        seconds = sum(stage.seconds_in for stage in stats.stages.values())
        rates = [next(iter(stats.stages.values())).bytes_in / seconds] if seconds else []
        if self._streams is not None and self._streams.current_stream(device) is not None:
            if not self._link_bytes_per_s:
                self._link_bytes_per_s = bytes_per_s(self._streams, device, min(most_bytes, PROBE_BYTES))
            rates.append(self._link_bytes_per_s)
        return min(rates, default=0.0)
