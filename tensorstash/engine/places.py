"""The place of each kind of saved tensors under a policy: found once, and remembered."""

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from tensorstash.abilities import Backend
from tensorstash.engine.advice import Adviser
from tensorstash.engine.content import Content
from tensorstash.engine.ledger import Ledger
from tensorstash.engine.place import Place
from tensorstash.engine.transfers import Transfers
from tensorstash.host.allocator import set_for_policies
from tensorstash.policies.plan import HookPolicy, Plan, Rebuilding
from tensorstash.protocols import Codec, Demand, Store, StoreConfig
from tensorstash.spec import TensorSpec
from tensorstash.stores.memory import Memory

SMALL = "smaller than min_bytes"

POLICY = "policy"
"""Why a tensor is kept of which a policy says no more."""

_REMEMBERED = 4096

Way = tuple[Rebuilding | None, Place | str]
"""The treatment of tensors of a kind: whether those that can be made again are; the place of others, or why not."""


@dataclass(eq=False)
class Places:
    """Remembers a policy's treatment of each kind of tensors, and shares one store among equal configs.

    Tensors below ``min_away_bytes`` are kept rather than sent away, to a ``disk`` or from a ``device``.
    """

    policy: HookPolicy
    backend: Backend[Any]
    ledger: Ledger
    adviser: Adviser
    transfers: Transfers | None
    min_away_bytes: Mapping[str, int]

    def __post_init__(self) -> None:
        self.stores: dict[StoreConfig, Store] = {}
        self.recent: dict[tuple[int, str], tuple[TensorSpec, Way]] = {}
        """The treatment by the identity of a spec, which must be the one noted, and its module: a hash is a frame."""
        self._remembered: dict[Hashable, Way] = {}
        self._numbers = defaultdict[Plan, int](count().__next__)  # no two plans get the same, whatever threads do
        for plan in self.policy.alternatives():
            if not plan.rest.keeps:
                self._store(plan.rest.store or Memory())

    def way(self, spec: TensorSpec, module: str, demand: Demand = "any", masks: tuple[Codec, ...] = ()) -> Way:
        """Return the treatment of a tensor that is saved in a module; ``masks`` replace the policy's codecs."""
        kind: Hashable = (module, spec, demand, masks) if module or masks or demand != "any" else spec
        way = self._remembered.get(kind)
        if way is None:
            spec_there = spec.inside(module) if module else spec
            plan = self.policy.plan(spec_there)
            if masks:
                rest = Plan(masks, plan.store or (Memory() if spec.device == "cpu" else None))
            else:
                rest = plan.rest.within(demand)
            place = self._place(rest, spec_there)
            if spec.device == "cpu" and (plan.rebuilding is not None or not isinstance(place, str)):
                set_for_policies()
            way = self._remember(kind, (plan.rebuilding, place))
        if demand == "any" and not masks:
            if len(self.recent) >= _REMEMBERED:
                self.recent.clear()
            self.recent[id(spec), module] = spec, way
        return way

    def suits(self, content: Content) -> bool:
        """Choose the part of a content's plan that suits its readers; return False if nothing is left of it."""
        reading = content.reading
        if reading is None:
            return True
        is_guess = reading.known < content.users
        demand = reading.guess() if is_guess else reading.demand
        place = content.place if demand == "any" else self._within(content.place, demand)
        if isinstance(place, str):
            next(self.ledger.declined[content.spec.nbytes])
        else:
            content.narrow(place)
        reading.decided(content.users, is_learned=is_guess and content.loses)
        return not isinstance(place, str)

    def _within(self, place: Place, demand: Demand) -> Place | str:
        """Return the place for the part of a plan that a demand leaves, or the reason why nothing is stored."""
        plan = place.plan.within(demand)
        if plan is place.plan:
            return place
        kind = place.number, place.saved, demand
        return (self._remembered.get(kind) or self._remember(kind, (None, self._place(plan, place.saved))))[1]

    def _remember(self, kind: Hashable, way: Way) -> Way:
        if len(self._remembered) >= _REMEMBERED:
            self._remembered.clear()
            self._numbers.clear()
        self._remembered[kind] = way
        return way

    def _place(self, plan: Plan, spec: TensorSpec) -> Place | str:
        if plan.keeps:
            return plan.reason or POLICY
        config = plan.store or Memory()
        away = self.min_away_bytes
        is_copied = spec.device != "cpu" and plan.store is not None  # what kernels made may stay on the device
        if spec.nbytes < max(away.get(config.tier, 0), away.get("device", 0) if is_copied else 0):
            return SMALL
        if plan.codecs or config.tier != "memory" or spec.device != "cpu":
            self.adviser.expect_gain()
        store = self._store(config)
        place = Place(plan, spec, self.backend, store, self.ledger, self.transfers, self._numbers[plan])
        if spec.device != "cpu" and place.transfers is None and place.tier != "device":
            streams = None if self.transfers is None else self.transfers.streams
            why = "its backend has no streams" if streams is None else streams.why_copies_wait(spec.device)
            self.ledger.waits[spec.device] = why or ""
        return place

    def _store(self, config: StoreConfig) -> Store:
        store = self.stores.get(config)
        if store is None:
            store = self.stores[config] = config.open()
            self.adviser.judge_directories(getattr(config, "directories", ()))
        return store
