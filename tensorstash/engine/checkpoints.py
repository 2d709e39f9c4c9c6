"""The blocks of a model that are computed again: the treatment of each, and the warning for those that cannot be."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tensorstash.abilities import Region, Streams
from tensorstash.abilities.checkpoints import ALREADY, CHECKPOINTED
from tensorstash.engine.advice import Adviser
from tensorstash.engine.ledger import Ledger
from tensorstash.engine.link import PROBE_BYTES, bytes_per_s
from tensorstash.engine.stats import Stats

NOT_CALLED = "not called yet"
NOT_REPEATED = "not repeated"


def by_treatment(regions: Iterable[Region]) -> Mapping[str, tuple[str, ...]]:
    """Return the names of blocks by their treatment.

    >>> regions = Region("h.0"), Region("h.1")
    >>> regions[0].judged("")
    >>> by_treatment(regions)
    {'checkpointed': ('h.0',), 'not called yet': ('h.1',)}
    """
    found: dict[str, tuple[str, ...]] = {}
    for region in regions:
        treatment = f"{NOT_REPEATED}, since each {region.refusal}" if region.refusal else region.fate
        treatment = f"left alone: the model {ALREADY}" if region.refusal == ALREADY else treatment
        treatment = NOT_CALLED if region.refusal is None else treatment
        found[treatment] = (*found.get(treatment, ()), region.name)
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


_STEPS = 3
"""After so many the plan stands, unless a step saves more than any before."""


def oldest_to_repeat(block_bytes: Sequence[int], excess_bytes: int) -> int:
    """Return how many of the oldest blocks are computed again, so that no excess is left.

    >>> oldest_to_repeat([10, 10, 10], 15), oldest_to_repeat([10], 15), oldest_to_repeat([10], -5)
    (2, 1, 0)
    """
    number = 0
    while excess_bytes > 0 and number < len(block_bytes):
        excess_bytes -= block_bytes[number]
        number += 1
    return number


class Border:
    """Says which blocks are computed again under a budget: the oldest, as many as the rest of the policy cannot take.

    The first step computes all of them again, the second all but as many as fit and four more, which tells what recipes
    save and how fast the stores are. From the third step on the excess leaves so as far as that takes no longer than
    the calls of the blocks, and is computed again beyond.

    Args:
        regions: the blocks, in the order of their calls.
        streams: of the devices; None where there are none.
        may_send: whether the rest of the policy has a store.
    """

    def __init__(self, regions: Mapping[str, Region], streams: Streams[Any] | None, *, may_send: bool) -> None:
        self._regions = regions
        self._streams = streams
        self._may_send = may_send
        self._steps = 0
        self._least_bytes = 0
        """Saved where all blocks are computed again."""
        self._scale = 1.0
        """Saved by blocks in a step, by the bytes of one call."""
        self._staying = 1.0
        """Left of that by recipes."""
        self._remade_bytes = 0
        self._link_bytes_per_s = 0.0

    def step_ended(self, saved_bytes: int, limit_bytes: int, ledger: Ledger, device: str = "cpu") -> None:
        """Plan the next step.

        Args:
            saved_bytes: by the step that has ended.
            limit_bytes: of the budget.
            ledger: of the session, for the bytes that left.
            device: of the saved tensors.
        """
        blocks = [region for region in self._regions.values() if region.is_repeated]
        there = sum(region.saved_bytes for region in blocks if not region.is_wanted)
        has_grown = saved_bytes > self._least_bytes + self._scale * there
        if not blocks or (not has_grown and self._steps >= _STEPS):
            return
        self._steps += 1
        stats = ledger.snapshot()
        remade_bytes = sum(stage.bytes_in for stage in stats.recomputed.values())
        if not there:
            self._least_bytes = max(self._least_bytes, saved_bytes)
        else:
            more_bytes = saved_bytes - self._least_bytes
            self._scale = more_bytes / there if self._steps == 2 else max(more_bytes / there, self._scale)
            if self._steps == 2 and more_bytes > 0:
                self._staying = 1 - min((remade_bytes - self._remade_bytes) / more_bytes, 1.0)
        self._remade_bytes = remade_bytes
        sizes = [int(self._scale * self._staying * region.saved_bytes) for region in blocks]
        excess_bytes = self._least_bytes + sum(sizes) - limit_bytes
        number = oldest_to_repeat(sizes, excess_bytes - self._sent_bytes(blocks, stats, device))
        sent = number + oldest_to_repeat(sizes[number:], excess_bytes - sum(sizes[:number]))
        for place, region in enumerate(blocks):
            region.planned(CHECKPOINTED if place < number else "offloaded" if place < sent else "kept")

    def _sent_bytes(self, blocks: Sequence[Region], stats: Stats, device: str) -> int:
        """Return how many bytes of a step stores take while its blocks run; those of four blocks to find out."""
        most_bytes = max(region.saved_bytes for region in blocks)
        if self._steps == 1:
            return 4 * most_bytes if self._may_send else 0
        seconds = sum(stage.seconds_in for stage in stats.stages.values())
        if not seconds:
            return 0
        rate = next(iter(stats.stages.values())).bytes_in / seconds
        if self._streams is not None and self._streams.current_stream(device) is not None:
            if not self._link_bytes_per_s:
                self._link_bytes_per_s = bytes_per_s(self._streams, device, min(most_bytes, PROBE_BYTES))
            rate = min(rate, self._link_bytes_per_s)
        return int(rate * sum(region.seconds for region in blocks))
