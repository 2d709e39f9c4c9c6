"""What becomes of each kind of saved tensors, by a policy: found out once, and remembered."""

from collections.abc import Hashable
from itertools import count
from typing import Any, NamedTuple

from tensorstash.abilities import Backend
from tensorstash.engine.advice import Adviser
from tensorstash.engine.ledger import Ledger
from tensorstash.engine.payloads.demands import Demands, Reading
from tensorstash.engine.payloads.payload import Payload
from tensorstash.engine.payloads.route import PayloadRoute, route_for
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


class Way(NamedTuple):
    """What becomes of tensors of a kind.

    Args:
        rebuilding: whether those that can be made again are; None for no.
        route: where all others go, or why they are kept.
    """

    rebuilding: Rebuilding | None
    route: PayloadRoute | str


class Ways:
    """Remembers what a policy says of each kind of tensors, and shares one store among equal configs.

    Args:
        policy: whose stores are opened now; every other one that is asked is among its choices.
        backend: the framework's adapter.
        ledger: counts for the stores.
        adviser: is told where tensors go.
        transfers: brings payloads to the host; None without streams.
        min_disk_bytes: smaller tensors are kept rather than written to a disk: each costs a thread's turn.

    Raises:
        StoreError: a store the policy may use cannot be opened.
    """

    def __init__(
        self,
        policy: HookPolicy,
        backend: Backend[Any],
        ledger: Ledger,
        adviser: Adviser,
        transfers: Transfers | None,
        min_disk_bytes: int,
    ) -> None:
        self._min_disk_bytes = min_disk_bytes
        self._backend = backend
        self._ledger = ledger
        self._adviser = adviser
        self.transfers = transfers
        self.frees_host_memory = False
        """Whether anything leaves host memory, or shrinks in it."""
        self.stores: dict[StoreConfig, Store] = {}
        self._remembered: dict[Hashable, Way] = {}
        self.known = self._remembered.get
        """Returns what becomes of tensors of a kind; None if it is new."""
        self._numbers: dict[Plan, int] = {}
        self._next_number = count()
        for plan in policy.alternatives():
            if not plan.rest.keeps:
                self._store(plan.rest.store or Memory())

    def new(
        self, kind: Hashable, policy: HookPolicy, spec: TensorSpec, demand: Demand, masks: tuple[Codec, ...] = ()
    ) -> Way:
        """Return what becomes of tensors of a new kind, which is known from now on.

        Args:
            kind: all that the answer depends on, hashable.
            policy: to be asked.
            spec: what it is asked about.
            demand: what backward needs of them.
            masks: codecs of those that are masks, in place of the policy's.
        """
        plan = policy.plan(spec)
        if masks:
            rest = Plan(masks, plan.store or (Memory() if spec.device == "cpu" else None))
        else:
            rest = plan.rest.within(demand)
        way = Way(plan.rebuilding, self._route(rest, spec))
        if spec.device == "cpu" and (way.rebuilding is not None or not isinstance(way.route, str)):
            set_for_policies()
        return self._remember(kind, way)

    def suits(self, payload: Payload, reading: Reading, demands: Demands) -> bool:
        """Choose what of a payload's plan suits its readers; return False if nothing is left of it.

        A plan learns of it then, unless nobody could tell what a reader needs: in the next step that is known.
        """
        demand, is_guess = reading.demand, reading.known < payload.users
        if is_guess:
            demand = demands.guess(reading)
            reading.known = payload.users
        route = payload.route if demand == "any" else self._within(payload.route, demand)
        if isinstance(route, str):
            self._ledger.declined(payload.spec.nbytes)
            return False
        payload.route = route
        payload.loses = not route.is_lossless  # last: who asks meanwhile, on another thread, gets the source
        reading.trusts_learned = is_guess and payload.loses
        return True

    def _within(self, route: PayloadRoute, demand: Demand) -> PayloadRoute | str:
        """Return the route of what a demand leaves of a plan, or why nothing is stored."""
        plan = route.plan.within(demand)
        if plan is route.plan:
            return route
        kind = route.number, route.saved, demand
        way = self.known(kind) or self._remember(kind, Way(None, self._route(plan, route.saved)))
        return way.route

    def _remember(self, kind: Hashable, way: Way) -> Way:
        if len(self._remembered) >= _REMEMBERED:
            self._remembered.clear()
        self._remembered[kind] = way
        return way

    def _route(self, plan: Plan, spec: TensorSpec) -> PayloadRoute | str:
        if plan.keeps:
            return plan.reason or POLICY
        config = plan.store or Memory()
        if config.tier == "disk" and spec.nbytes < self._min_disk_bytes:
            return SMALL
        self.frees_host_memory |= spec.device == "cpu"
        self._adviser.may_gain |= bool(plan.codecs) or config.tier != "memory" or spec.device != "cpu"
        parts = config, self._store(config), self._ledger, self.transfers
        route = route_for(plan, spec, self._backend, *parts)
        if len(self._numbers) >= _REMEMBERED:  # none is given twice: what is saved may know it
            self._numbers.clear()
        if plan not in self._numbers:
            self._numbers[plan] = next(self._next_number)
        route.number = self._numbers[plan]
        if spec.device != "cpu" and route.transfers is None and route.tier != "device":
            why = "its backend has no streams" if self.transfers is None else self.transfers.why_wait(spec.device)
            self._ledger.copies_wait(spec.device, why or "")
        return route

    def _store(self, config: StoreConfig) -> Store:
        store = self.stores.get(config)
        if store is None:
            store = self.stores[config] = config.open()
            self._adviser.judge_directories(getattr(config, "directories", ()))
        return store
