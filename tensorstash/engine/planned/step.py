"""One step as the hooks see it: what was saved when, and what became of it."""

from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping
from statistics import median
from types import MappingProxyType

from tensorstash.planner.model import KEEP, Option, Record, SavedClass
from tensorstash.policies.placement import Keep
from tensorstash.policies.plan import HookPolicy
from tensorstash.spec import TensorSpec

_MOST = 0.9
"""Part of what a step has saved that has to be asked for, or gone, before what is saved next begins another one."""

_TELLING = 8
"""Tensors that, all gone without having been asked for, were a graph that was dropped."""


class Seen:
    """One saved tensor of a step.

    Args:
        key: its class.
        nbytes: of its elements.
        token: of its memory.
        block: which part of the memory it is.
        saved: when it was saved.
    """

    __slots__ = (
        "block",
        "counted_on",
        "freed",
        "is_asked_again",
        "is_named",
        "key",
        "left",
        "nbytes",
        "needs",
        "options",
        "policy",
        "released",
        "remade_s",
        "saved",
        "tell",
        "tier",
        "token",
        "used",
        "wanted",
    )

    def __init__(self, key: SavedClass, nbytes: int, token: Hashable, block: Hashable, saved: float) -> None:
        self.key = key
        self.nbytes = nbytes
        self.token = token
        self.block = block
        self.saved = saved
        self.freed: float | None = None
        self.wanted: float | None = None
        self.is_asked_again = False
        """Whether backward has asked for it more than once: the graph was retained."""
        self.used: float | None = None
        """When backward was first done with what had come back."""
        self.released: float | None = None
        self.tier = ""
        self.options: tuple[Option, ...] = ()
        self.left: int | None = None
        """Bytes that codecs have left of it; None if they have not been at it."""
        self.counted_on = 0.0
        """Those of them that they are counted on to leave."""
        self.tell: Callable[[Seen], None] | None = None
        """Is told when they have been at it."""
        self.remade_s: float | None = None
        """Seconds that it takes to make it again; None if it was not made again."""
        self.needs: tuple[SavedClass, ...] = ()
        """What it is made of then."""
        self.policy: HookPolicy = Keep()
        """What becomes of it."""
        self.is_named = False
        """Whether the policy goes by its class."""

    def leaves(self, nbytes: int) -> None:
        """Note that codecs have left so many bytes of it; on any thread."""
        self.left = nbytes
        if self.tell is not None:
            self.tell(self)

    @property
    def way(self) -> Hashable:
        """All that the policy goes by besides the spec."""
        return self.key if self.is_named else self.tier

    def named(self, spec: TensorSpec) -> TensorSpec:
        """Return a spec with all that the policy goes by."""
        if not self.is_named:
            return spec
        return spec.inside(self.key.module).saved_as(self.key.producer, self.key.ordinal)


class Step:
    """What one step has saved so far; for the thread that runs it.

    Args:
        began: when.
        wall: the same, on a clock that does not stand still while hooks run.
    """

    def __init__(self, began: float, wall: float) -> None:
        self.began = began
        self.wall = wall
        self.ended = began
        self.wall_ended = wall
        self.seen: list[Seen] = []
        self.sizes: Counter[int] = Counter()
        """How many tensors of so many bytes it has packed, whatever became of them."""
        self.small = 0
        """Bytes of those among them that are too small to be looked at."""
        self.tiers: dict[Hashable, str] = {}
        """By memory, so that all that lie in one share its tier."""
        self.largest = 0
        self.largest_moved = 0
        """Bytes of the largest tensor that is not kept."""
        self.short = 0
        """Bytes that were read ahead where other tensors needed the room."""
        self.on_disk = 0
        self.overran = False
        self.counts_on_codecs = False
        """Whether codecs are counted on to leave less of anything."""
        self._encoded: deque[Seen] = deque()
        """What codecs have been at, and were counted on."""
        self._excess = 0.0
        self._unsure = 0.0
        """Bytes of what they are still at that they are counted on to save."""
        self._tried = 0.0
        """The same of what they have been at."""
        self._unsaved = 0.0
        """Those of the latter that they have not saved."""
        self.remaking: tuple[str, ...] = ()
        """Tiers under which tensors are made again."""
        self.surprises = 0
        """Tensors of classes that the plan does not know."""
        self._ordinals: Counter[Hashable] = Counter()
        self._packed = 0
        self._done = 0
        self.was_asked = False
        """Whether backward has asked for anything; if not, and all is gone, the graph was dropped."""

    @property
    def signature(self) -> Hashable:
        """What tells its shapes from those of other steps; None before anything was saved."""
        return self.seen[0].key if self.seen else None

    @property
    def is_over(self) -> bool:
        """Whether what is saved next belongs to another step."""
        if self.was_asked:
            return self._done >= _MOST * self._packed
        return len(self.seen) >= _TELLING and self._done == self._packed

    def ordinal(self, kind: Hashable) -> int:
        """Return how many of the same kind were saved before, and count one more."""
        place = self._ordinals[kind]
        self._ordinals[kind] += 1
        return place

    def add(self, seen: Seen) -> None:
        """Append a saved tensor."""
        self.seen.append(seen)
        self._packed += seen.nbytes
        self.largest = max(self.largest, seen.nbytes)

    def count_on(self, seen: Seen, nbytes: float) -> None:
        """Note that codecs are counted on to leave so many bytes of a tensor."""
        seen.counted_on, seen.tell, self.counts_on_codecs = nbytes, self._encoded.append, True
        self._unsure += seen.nbytes - nbytes

    def moved_instead(self, nbytes: float) -> None:
        """Note that a tensor was moved of which so many bytes were to be in memory."""
        self._excess -= nbytes

    def settle_excess(self) -> float:
        """Return the bytes that codecs have left beyond what they were counted on, less those moved instead.

        What they are still at is taken to shrink as little as what they have been at.
        """
        while self._encoded:
            seen = self._encoded.popleft()
            if seen.left is not None:
                beyond = max(seen.left - seen.counted_on, 0.0)
                self._unsure -= seen.nbytes - seen.counted_on
                self._tried += seen.nbytes - seen.counted_on
                self._unsaved += beyond
                self._excess += beyond if seen.released is None else 0.0
        return self._excess + (self._unsure * self._unsaved / self._tried if self._unsaved else 0.0)

    def asked(self, seen: Seen, now: float, wall: float) -> None:
        """Note that backward asks for a tensor."""
        self.was_asked = True
        self.ended, self.wall_ended = now, wall
        seen.is_asked_again = seen.wanted is not None
        if seen.wanted is None:
            seen.wanted = now
            if seen.released is None:
                self._done += seen.nbytes

    def gone(self, seen: Seen, now: float) -> None:
        """Note that the graph has let go of a tensor."""
        if seen.released is None:
            seen.released = now
            if seen.wanted is None:
                self._done += seen.nbytes


def records(
    step: Step, known: Mapping[SavedClass, tuple[Option, ...]] = MappingProxyType({})
) -> tuple[tuple[Record, ...], dict[SavedClass, SavedClass]]:
    """Return a measured step as records, one for each memory.

    Args:
        step: that is over.
        known: what may become of records that another step had, too.

    Returns:
        The records, and classes that share the memory of a record, with its class.
    """
    groups: dict[Hashable, list[Seen]] = {}
    makings: dict[Hashable, list[float]] = {}
    for seen in step.seen:
        groups.setdefault(seen.token, []).append(seen)
        if seen.remade_s is not None:
            makings.setdefault(seen.key.kind, []).append(seen.remade_s)
    made = []
    aliases = {
        other.key: members[0].key for members in groups.values() for other in members[1:] if other.key != members[0].key
    }
    for members in groups.values():
        first = members[0]
        nbytes = sum({seen.block: seen.nbytes for seen in members}.values())
        released = max(step.ended if seen.released is None else seen.released for seen in members)
        asked = [seen.wanted for seen in members if seen.wanted is not None]
        wanted = min(asked, default=released)
        # Of what is kept nobody is told when the program lets go of it, and nearly all goes soon.
        moments = (seen.saved if seen.tier == KEEP else seen.freed for seen in members)
        left = [moment for moment in moments if moment is not None]
        is_held = not left
        freed = max(left, default=wanted)
        keep = Option(KEEP, nbytes)
        # Of its kind: a moment in which the machine did something else is no reason to move a tensor.
        remade = [median(makings[seen.key.kind]) for seen in members if seen.remade_s is not None]
        needs = dict.fromkeys(aliases.get(key, key) for seen in members for key in seen.needs)
        is_remade = len(remade) == len(members)
        again = tuple(Option(tier, 0, max(remade), needs=tuple(needs)) for tier in step.remaking) if is_remade else ()
        # Under a tier that would make it again it is not stored, whatever else the tier has.
        stored = (option for option in _scaled(first, nbytes) if not again or option.tier not in step.remaking)
        others = known[first.key][1:] if first.key in known else (*again, *stored)
        options = (keep,) if is_held else (keep, *others)
        used = max((seen.used for seen in members if seen.is_asked_again and seen.used is not None), default=None)
        made.append(Record(first.key, nbytes, first.saved, freed, wanted, max(released, wanted), options, used))
    return tuple(made), aliases


def _scaled(seen: Seen, nbytes: int) -> tuple[Option, ...]:
    factor = nbytes / max(seen.nbytes, 1)
    if factor == 1:
        return seen.options
    return tuple(
        Option(o.tier, round(o.resident * factor), o.seconds * factor, o.link, o.out_s * factor, o.back_s * factor)
        for o in seen.options
    )
