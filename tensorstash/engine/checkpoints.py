"""The blocks of a model that are computed again: what becomes of each, and what is said of those that cannot be."""

from collections.abc import Iterable, Mapping

from tensorstash.abilities import Region
from tensorstash.abilities.checkpoints import ALREADY
from tensorstash.engine.advice import Adviser

CHECKPOINTED = "checkpointed"
NOT_CALLED = "not called yet"
NOT_REPEATED = "not repeated"


def by_treatment(regions: Iterable[Region]) -> Mapping[str, tuple[str, ...]]:
    """Return the names of blocks by what becomes of them.

    >>> regions = Region("h.0"), Region("h.1")
    >>> regions[0].judged("")
    >>> by_treatment(regions)
    {'checkpointed': ('h.0',), 'not called yet': ('h.1',)}
    """
    found: dict[str, tuple[str, ...]] = {}
    for region in regions:
        found[_treatment(region)] = (*found.get(_treatment(region), ()), region.name)
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


def _treatment(region: Region) -> str:
    if region.refusal is None:
        return NOT_CALLED
    if region.refusal == ALREADY:
        return f"left alone: the model {ALREADY}"
    if region.refusal:
        return f"{NOT_REPEATED}, since each {region.refusal}"
    return CHECKPOINTED if region.is_wanted else "kept"
