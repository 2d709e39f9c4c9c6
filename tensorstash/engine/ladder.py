"""The rule of a budget: of the last equal step, the bytes beyond the limit leave, the cheapest tier first."""

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Literal, get_args

from tensorstash.abilities import Backend, SupportsMemoryUse
from tensorstash.engine.ledger import Ledger
from tensorstash.engine.stats import Tally
from tensorstash.errors import BackendError, say
from tensorstash.host.budget import ByteBudget
from tensorstash.host.pages import free_bytes, physical_bytes
from tensorstash.sizes import BudgetSize, format_bytes
from tensorstash.spec import TensorSpec

_MARGIN = 0.05  # part of the free memory that an automatic budget leaves free

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


def planned(records: Sequence[Record], limit_bytes: int) -> list[Record]:
    """Return the records of a step with a fate each, so that no more than ``limit_bytes`` stay.

    Recipes come before stores, over the whole step; within a tier the oldest leave first, as backward needs them last.
    Tensors in one memory leave together, or their memory would stay.
    """
    groups: defaultdict[int, list[Record]] = defaultdict(list)
    for record in records:
        groups[record.memory].append(record)
    sizes = {memory: sum(record.nbytes for record in group) for memory, group in groups.items()}
    room = limit_bytes
    while True:
        fates = _choose(groups, sizes, sum(sizes.values()) - room)
        over = _peak(sizes, fates) - limit_bytes
        if over <= 0 or room <= 0:  # no two plans share a record
            return [replace(record, fate=fates[record.memory], has_news=False) for record in records]
        room = max(room - over, 0)


def _choose(groups: Mapping[int, list[Record]], sizes: Mapping[int, int], excess: int) -> dict[int, Fate]:
    fates: dict[int, Fate] = dict.fromkeys(groups, "kept")
    for fate in get_args(Fate)[1:]:
        for memory, group in groups.items():
            if excess <= 0:
                return fates
            if fate == "stored":
                gain = sizes[memory] - sum(record.left_bytes for record in group)
                may_leave = all(record.is_storable for record in group)
            else:
                gain, may_leave = sizes[memory], all(record.is_remakable for record in group)
            if fates[memory] == "kept" and gain > 0 and may_leave:
                fates[memory] = fate
                excess -= gain
    return fates


def _peak(sizes: dict[int, int], fates: Mapping[int, Fate]) -> int:
    """Return the most bytes that are held in backward: tensors that stay, and one that is back, the newest first."""
    held = peak = sum(nbytes for memory, nbytes in sizes.items() if fates[memory] == "kept")
    for memory, nbytes in reversed(sizes.items()):
        if fates[memory] == "kept":
            held -= nbytes
        else:
            peak = max(peak, held + nbytes)
    return peak


class Ladder:
    """Says for each saved tensor whether it stays, is made again or is stored, so that a budget is held. Thread-safe.

    The i-th save of a step has the fate that the plan of an equal step gives it. A step is known by the kinds that it
    has saved so far; where it differs from the last that began so, there is no fate, and tensors leave by age.

    Payloads in the same memory count towards the limit, and so do bytes in flight and bytes that are read back.
    """

    def __init__(
        self, budget: BudgetSize, backend: Backend[Any], ledger: Ledger, in_flight: ByteBudget, ahead: ByteBudget
    ) -> None:
        self._budget, self._backend = budget, backend
        self._ledger, self.in_flight, self._budgets = ledger, in_flight, (in_flight, ahead)
        self._tiers: tuple[str, ...] = ()
        self.device = "cpu"
        """Of the first saved tensor, whose memory is bounded."""
        self.limit_bytes = 0
        """Bytes of saved tensors that may stay; 0 before :meth:`begin`."""
        self.is_begun = False
        """Whether the limit is known."""
        self.lasting_bytes = 0
        """Bytes that the last step saved and no recipe makes again."""
        self._lock = threading.Lock()
        self._plans: OrderedDict[int, list[Record]] = OrderedDict()
        self._clear()

    def begin(self, device: str) -> None:
        """Find the limit, which may be known only where the first tensor is saved: on ``device``."""
        limit = self._budget
        if limit == "auto":
            limit = int((1 - _MARGIN) * self._free_bytes(device))
        elif device == "cpu" and limit > physical_bytes():
            say(
                f"budget: {format_bytes(limit)} is more than the {format_bytes(physical_bytes())} of this machine, "
                "so that nothing leaves; pass budget='auto'"
            )
        self._tiers = ("memory", "device") if device == "cpu" else ("device",)
        self.limit_bytes, self.device, self.is_begun = limit, device, True

    def _free_bytes(self, device: str) -> int:
        if device == "cpu":
            free = free_bytes()
        else:
            free = self._backend.free_bytes(device) if isinstance(self._backend, SupportsMemoryUse) else None
        if free is None:
            raise BackendError(
                f"budget: it is not known how much memory of {device} is free; pass the bytes that saved tensors may "
                "take instead, such as budget='6GiB'"
            )
        return free

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
        """Return the record of the next saved tensor, which begins ``start`` bytes behind its live storage's first."""
        kind = spec.order.shape, spec.dtype, spec.device, module
        with self._lock:
            place = len(self._step)
            plan = self._plan if place else self._plans.get(hash(kind))
            if plan is not None and (place >= len(plan) or plan[place].kind != kind):
                plan = None
            self._plan, self.is_planned = plan, plan is not None
            memory = self._memories.setdefault(token, place)
            block = token, start, spec.order.block
            nbytes = 0 if block in self._blocks else spec.nbytes
            self._blocks.add(block)
            record = Record(kind, nbytes, memory) if plan is None else plan[place]
            self._step.append(record)
        return record

    def step_ended(self) -> None:
        """Plan the next step that is equal to the one that has ended."""
        with self._lock:
            step, plan, plans = self._step, self._plan, self._plans
            if step:
                self.lasting_bytes = sum(record.nbytes for record in step if not record.is_remakable)
                first = hash(step[0].kind)
                if plan is None or len(plan) != len(step) or any(map(attrgetter("has_news"), step)):
                    plans[first] = planned(step, self.limit_bytes)
                plans.move_to_end(first)
                if len(plans) > _REMEMBERED_STEPS:
                    plans.popitem(last=False)
            self._clear()

    def tallies(self) -> dict[str, Tally]:
        """Return how many tensors the plan of the last step keeps, recomputes and stores; empty before there is one."""
        with self._lock:
            plan = next(reversed(self._plans.values()), [])
        parts = {fate: [record.nbytes for record in plan if record.fate == fate] for fate in get_args(Fate)}
        return {fate: Tally(len(sizes), sum(sizes)) for fate, sizes in parts.items()} if plan else {}
