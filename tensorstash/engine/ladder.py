"""The rule of a budget: the excess over the bytes of the last equal step leaves, the cheapest tier first."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter
from typing import Literal, get_args

from tensorstash.engine.ledger import Ledger
from tensorstash.engine.stats import Tally
from tensorstash.host.budget import ByteBudget
from tensorstash.spec import TensorSpec

logger = logging.getLogger("tensorstash")

_REMEMBERED_STEPS = 32


Fate = Literal["kept", "recomputed", "stored"]
"""The treatment of a saved tensor in the plan of a step."""


@dataclass(eq=False, slots=True)
class Record:
    """One saved tensor of a step: its kind, its bytes, and the ways in which it can leave.

    Args:
        kind: equal for tensors that one program saves at the same point of two steps.
        nbytes: bytes that leave with the tensor; 0 for a second save of the same bytes.
        memory: position of the first record in the same memory, or of this one.
        fate: where the plan puts it; None where no plan knows the step.
        is_remakable: whether there is a recipe for the tensor.
        is_storable: whether the policy has a store for it.
        left_bytes: of its payload, in the memory that the budget is of.
        has_news: whether a plan that was made of it is out of date.
    """

    kind: Hashable
    nbytes: int
    memory: int
    fate: Fate | None = None
    is_remakable: bool = False
    is_storable: bool = False
    left_bytes: int = 0
    has_news: bool = True

    def was_recomputed(self, is_remakable: bool) -> None:
        """Note whether there is a recipe for the tensor."""
        self.has_news |= self.is_remakable != is_remakable
        self.is_remakable = is_remakable

    def was_stored(self, left_bytes: int = 0) -> None:
        """Note that the policy has a store for the tensor, and how many bytes of memory the payload takes."""
        self.has_news |= not self.is_storable or self.left_bytes != left_bytes
        self.is_storable, self.left_bytes = True, left_bytes

    def planned(self, fate: Fate) -> "Record":
        """Return a record with another fate, as no two plans share one."""
        return replace(self, fate=fate, has_news=False)


def planned(records: Sequence[Record], limit_bytes: int) -> list[Record]:
    """Return the records of a step with a fate each, so that no more than ``limit_bytes`` stay.

    Recipes come before stores, over the whole step; within a tier the oldest leave first, as backward needs them last.
    Tensors in one memory leave together, or their memory would stay.

    >>> step = [Record("x", 10, place) for place in range(3)]
    >>> for record in step:
    ...     record.was_stored()
    >>> [record.fate for record in planned(step, 15)]
    ['stored', 'stored', 'kept']
    """
    groups: dict[int, list[Record]] = {}
    for record in records:
        groups.setdefault(record.memory, []).append(record)
    total = sum(record.nbytes for record in records)
    room = limit_bytes
    while True:
        fates = _choose(groups, total - room)
        over = _peak(groups, fates) - limit_bytes
        if over <= 0 or room <= 0:
            return [record.planned(fates[record.memory]) for record in records]
        room = max(room - over, 0)


def _choose(groups: dict[int, list[Record]], excess: int) -> dict[int, Fate]:
    fates: dict[int, Fate] = dict.fromkeys(groups, "kept")
    for fate in get_args(Fate)[1:]:
        for memory, group in groups.items():
            if excess <= 0:
                return fates
            gain = sum(record.nbytes for record in group)
            if fate == "stored":
                gain -= sum(record.left_bytes for record in group)
            may_leave = all(record.is_remakable if fate == "recomputed" else record.is_storable for record in group)
            if fates[memory] == "kept" and gain > 0 and may_leave:
                fates[memory] = fate
                excess -= gain
    return fates


def _peak(groups: dict[int, list[Record]], fates: dict[int, Fate]) -> int:
    """Return the most bytes that are held in backward: tensors that stay, and one that is back, the newest first."""
    sizes = {memory: sum(record.nbytes for record in group) for memory, group in groups.items()}
    held = peak = sum(nbytes for memory, nbytes in sizes.items() if fates[memory] == "kept")
    for memory in reversed(sizes):
        if fates[memory] == "kept":
            held -= sizes[memory]
        else:
            peak = max(peak, held + sizes[memory])
    return peak


class Ladder:
    """Says for each saved tensor whether it stays, is made again or is stored, so that a budget is held. Thread-safe.

    The i-th save of a step has the fate that the plan of an equal step gives it. A step is known by the kinds that it
    has saved so far; where it differs from every step before, there is no fate, and tensors leave by age.

    Args:
        ledger: counts payloads, which count towards the limit where they take the same memory.
        in_flight: bytes on their way into their places, which do, too.
        ahead: bytes that are read back, which do, too.
    """

    def __init__(self, ledger: Ledger, in_flight: ByteBudget, ahead: ByteBudget) -> None:
        self._ledger, self.in_flight, self._budgets = ledger, in_flight, (in_flight, ahead)
        self._tiers: tuple[str, ...] = ()
        self.device = "cpu"
        """Of the first saved tensor."""
        self.limit_bytes = 0
        """Bytes of saved tensors that may stay; 0 before :meth:`begin`."""
        self.is_begun = False
        """Whether the limit is known."""
        self.saved_bytes = 0
        """Bytes that the last step saved."""
        self._lock = threading.Lock()
        self._plans: OrderedDict[int, list[Record]] = OrderedDict()
        self._is_broken = False
        self._clear()

    def begin(self, limit_bytes: int, device: str) -> None:
        """Set the limit, which may be known only where the first tensor is saved.

        Args:
            limit_bytes: of saved tensors that may stay.
            device: of the first saved tensor, whose memory is bounded.
        """
        self._tiers = ("memory", "device") if device == "cpu" else ("device",)
        self.limit_bytes, self.device, self.is_begun = limit_bytes, device, True

    def other_bytes(self) -> int:
        """Return the bytes that are in flight, read back, or taken by payloads in the same memory."""
        ledger, others = self._ledger, 0
        for budget in self._budgets:
            others += budget.used if budget.gone else budget.taken
        live = ledger.settled() if ledger.gone else ledger.live
        for tier in self._tiers:  # no generator: it is asked for each tensor
            others += live[tier]
        return others

    def spare_bytes(self) -> int:
        """Return the bytes that are left of the limit, where no contents are resident."""
        return self.limit_bytes - self.other_bytes()

    def _clear(self) -> None:
        self._plan: list[Record] | None = None
        self.is_planned = False
        """Whether the step is known so far."""
        self._step: list[Record] = []
        self._memories: dict[Hashable, int] = {}
        self._blocks: set[Hashable] = set()

    def saved(self, spec: TensorSpec, module: str, token: Hashable, start: int) -> Record:
        """Return the record of the next saved tensor.

        Args:
            spec: of the tensor.
            module: that it is saved in.
            token: of its live storage.
            start: byte offset of its first element in there.
        """
        kind = spec.order.shape, spec.dtype, spec.device, module
        with self._lock:
            place = len(self._step)
            plan = self._plan if place else self._plans.get(hash(kind))
            if plan is not None and (place >= len(plan) or plan[place].kind != kind):
                plan = self._other_plan(kind)
            self._plan, self.is_planned = plan, plan is not None
            memory = self._memories.setdefault(token, place)
            block = token, start, spec.order.block
            nbytes = 0 if block in self._blocks else spec.nbytes
            self._blocks.add(block)
            record = Record(kind, nbytes, memory) if plan is None else plan[place]
            self._step.append(record)
        return record

    def _other_plan(self, kind: Hashable) -> list[Record] | None:
        """Return the plan of another step that has begun like this one and goes on with ``kind``."""
        place = len(self._step)
        for plan in reversed(self._plans.values()):
            if len(plan) > place and plan[place].kind == kind:
                both = zip(islice(plan, place), self._step, strict=True)
                if all(one.kind == other.kind for one, other in both):
                    return plan
        return None

    def step_ended(self) -> None:
        """Plan the next step that is equal to the one that has ended."""
        with self._lock:
            step = self._step
            if step and not self._is_broken:
                try:
                    self._learn(step)
                except Exception:  # a plan is advice: without one, tensors leave by age
                    logger.exception("planning for a budget failed; from now on tensors leave by age")
                    self._is_broken = True
                    self._plans.clear()
            self._clear()

    def _learn(self, step: list[Record]) -> None:
        self.saved_bytes = sum(map(attrgetter("nbytes"), step))
        first = hash(step[0].kind)
        is_same = self._plan is not None and len(self._plan) == len(step)
        if not is_same or any(map(attrgetter("has_news"), step)):
            self._plans[first] = planned(step, self.limit_bytes)
        self._plans.move_to_end(first)
        if len(self._plans) > _REMEMBERED_STEPS:
            self._plans.popitem(last=False)

    def tallies(self) -> dict[str, Tally]:
        """Return how many tensors the plan of the last step keeps, recomputes and stores; empty before there is one."""
        with self._lock:
            plan = next(reversed(self._plans.values()), [])
        parts = {fate: [record.nbytes for record in plan if record.fate == fate] for fate in get_args(Fate)}
        return {fate: Tally(len(sizes), sum(sizes)) for fate, sizes in parts.items()} if plan else {}
