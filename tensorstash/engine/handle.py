"""What the autograd graph holds in place of a saved tensor."""

from collections.abc import Callable
from typing import Any

from tensorstash.engine.payloads.demands import Reading
from tensorstash.engine.payloads.payload import Payload
from tensorstash.engine.prefetch import Requests
from tensorstash.engine.state import SessionState
from tensorstash.errors import StashError, modified
from tensorstash.protocols import Demand, strictest
from tensorstash.spec import TensorSpec

Kept = tuple[SessionState, Any, int]
"""A tensor that stays as it is: who has kept it, an alias, its in-place version when it was saved.

A bare tuple, since most saved tensors are kept, and each costs one of these."""

Handle = Kept | Callable[[], Any]
"""What ``pack`` returns: what :func:`restore` makes the saved tensor of, any number of times, from any thread.

The graph owns the handle, and the handle owns its share of a slot.
"""


def restore(handle: Handle) -> Any:
    """Return a saved tensor, after the version check that frameworks skip once hooks are set.

    Raises:
        SavedTensorModifiedError: it was modified in place since it was saved, or before its bytes were captured.
        StashError: the bytes could not be captured, loaded or decoded; the message names stage, codec and tensor.
    """
    if type(handle) is not tuple:
        return handle()  # type: ignore[operator]
    state, alias, version = handle
    now = state.version(alias)
    if now != version:
        raise modified(state.backend.describe(alias), now, version)
    state.was_asked = True
    return alias


class Stashed:
    """A tensor whose bytes are in a store, or on their way there.

    Several handles may share one payload, each with a layout of its own.
    """

    __slots__ = ("__weakref__", "_requests", "_spec", "is_made", "payload", "state", "wants_reader")

    depth = 0
    """Operations that are run for it."""

    def __init__(self, state: SessionState, payload: Payload, requests: Requests, spec: TensorSpec) -> None:
        self.state = state
        self.payload = payload
        self._requests = requests
        self._spec = spec
        self.is_made = True
        """Whether the graph has made the tensor, as far as that is known."""
        self.wants_reader = True
        """Whether it is not known yet what the operation that saved it needs of it."""

    def is_read_by(self, demand: Demand) -> None:
        """Note what the operation that saved it needs of it."""
        if self.wants_reader:
            self.wants_reader = False
            reading = self.payload.reading
            if reading is not None:
                reading.known += 1
                if demand != "any":
                    reading.demand = strictest((reading.demand, demand)) or demand

    def __call__(self) -> Any:
        """Return the saved tensor: its source if the bytes have not left and lose nothing, else a fresh tensor.

        Raises:
            SavedTensorModifiedError: it was modified in place before its bytes were captured.
            StashError: the bytes could not be captured, loaded or decoded; the message names stage, codec and tensor.
        """
        state = self.state
        state.was_asked = True
        state.ledger.unpacked()
        state.prefetcher.asked(self._requests, self.payload.index)
        if state.adviser.watches and state.compiled_graph is not None:
            graph = state.compiled_graph()
            if graph is not None:
                state.adviser.asked(graph, self._spec.nbytes)
        reading = self.payload.reading
        if self.wants_reader and reading is not None and reading.kind is not None:
            self._learn(reading)
        tensor = self._restore()
        if self.payload.is_streamed:
            state.prefetcher.prefetch_to_device(self._requests)
        return tensor

    @property
    def is_exact(self) -> bool:
        """Whether what comes back is equal to the bit, whatever reads it."""
        return self.payload.route.is_lossless

    def add_user(self) -> None:
        """Count somebody besides the graph who will ask, as a recipe does."""
        self.payload.users += 1

    def peek(self) -> Any:
        """Return the tensor to look at it and drop it; nobody is told, and nothing is read ahead."""
        payload, spec = self.payload, self._spec
        source = payload.source
        if source is not None:  # where the bytes were copied at once, perhaps as an array
            is_tensor = spec == payload.spec and not payload.is_private
            return source if is_tensor else payload.route.copy(source, payload.spec, spec)
        payload.users += 1  # besides those who will ask
        tensor = payload.restore(spec)
        payload.drop()  # backward is far away
        return tensor

    def _learn(self, reading: Reading) -> None:
        """Learn from the operation that asks what it needs, for the next content of this kind."""
        state, route = self.state, self.payload.route
        demand = None if state.running_demand is None else state.running_demand(self)
        if demand is None:
            return
        state.demands.learn(reading.kind, demand)
        if reading.trusts_learned and route.plan.within(demand) != route.plan:
            raise StashError(
                f"{route.store_place}: backward needs the tensor exactly, and did not in the "
                f"steps before, so that it was encoded with a loss; from the next step on it is not"
            )

    def _restore(self) -> Any:
        source = self.payload.source
        if source is not None:
            self.state.ledger.forwarded()
            return self._forward(source)
        return self.payload.restore(self._spec)

    def _gives_source(self) -> bool:
        """Whether who asks gets the source's own memory, and no copy of it."""
        payload, held = self.payload, self.state.residency
        if payload.loses or held is None:
            return False
        may_give = self._spec == payload.spec and held.may_give(payload)
        return may_give or payload.route.shares(payload.spec, self._spec)

    def _forward(self, source: Any) -> Any:
        payload = self.payload
        if payload.loses:
            tensor = payload.route.round_trip(source, payload.spec, self._spec)
        elif self._gives_source():
            return source if self._spec == payload.spec else payload.route.relaid(source, payload.spec, self._spec)
        else:
            tensor = payload.route.copy(source, payload.spec, self._spec)
        payload.raise_failure()
        return tensor
