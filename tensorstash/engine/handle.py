"""The handles that the autograd graph holds in place of saved tensors, and the state that they share with a session."""

from collections.abc import Callable
from typing import Any, NoReturn

from tensorstash.abilities import Backend, SupportsGraph
from tensorstash.engine.advice import Adviser
from tensorstash.engine.content import Content
from tensorstash.engine.dedup import Stretch
from tensorstash.engine.ledger import Ledger
from tensorstash.engine.prefetch import Prefetcher
from tensorstash.engine.readers import Learned
from tensorstash.engine.residency import Residency
from tensorstash.errors import StashError, modified
from tensorstash.host.forks import renew_after_fork
from tensorstash.protocols import Demand
from tensorstash.spec import TensorSpec

Kept = tuple["SessionState", Any, int]
"""A tensor that stays as it is: who has kept it, an alias, its in-place version then. Most are: hence a bare tuple."""

Handle = Any
"""The result of ``pack``: one of this module, or whatever returns a tensor when it is called. The graph owns it."""


class SessionState:
    """The parts of a session that its handles need; no residency where nobody tells who holds a memory."""

    def __init__(
        self,
        backend: Backend[Any],
        ledger: Ledger,
        adviser: Adviser,
        prefetcher: Prefetcher,
        residency: Residency | None,
    ) -> None:
        self.backend, self.ledger, self.adviser = backend, ledger, adviser
        self.prefetcher, self.residency = prefetcher, residency
        # Looked up once: to ask for an ability takes longer than to use it.
        self.version = backend.version
        self.graph = backend if isinstance(backend, SupportsGraph) else None
        self.may_write = bool if self.graph is None else self.graph.may_write
        self.learned: Learned = {}
        self.was_asked = False  # in this step
        self.is_inherited = False
        """Whether this process is a child, forked from the one that made the session."""
        self._unpacked: Callable[[], object] = ledger.unpacked
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Refuse all that needs the threads, files and devices of the parent, whose locks may be held for ever."""
        self.is_inherited = True
        self._unpacked = _refuse

    def refuse_child(self) -> None:
        """Raise StashError in a forked child."""
        if self.is_inherited:
            _refuse()

    def step_began(self) -> None:
        """Forget that a handle was restored."""
        self.was_asked = False

    @staticmethod
    def restore(handle: Any) -> Any:
        """Return a saved tensor, any number of times, after the version check that frameworks skip with hooks."""
        kind = type(handle)
        if kind is tuple or kind is KeptHandle:
            # Without the frame of a bound method: most saved tensors come here.
            self, alias, version = handle if kind is tuple else handle.kept
            now = self.version(alias)
            if now != version:
                raise modified(self.backend.describe(alias), now, version)
            self.was_asked = True
            return alias
        if kind is not Stashed:
            return handle()
        self, content, spec, stretch = handle.state, handle.content, handle.spec, handle.stretch
        self.was_asked = True
        self._unpacked()  # raises in a forked child
        if self.adviser.watches and self.graph is not None:
            self.adviser.asked(self.graph.compiled_graph(), spec.nbytes)
        if stretch is not None:
            self.prefetcher.asked(stretch, content)
        if content.reading is not None and handle.wants_reader:
            self._learn(handle)
        # Once it is known, its capture is over: no source comes back.
        source = None if content.alias is None and not content.is_streamed else content.source
        if source is None:
            tensor = content.restore(spec)
        else:
            self.ledger.forwarded()
            tensor = self._forward(content, source, spec)
            if content.is_large:
                self.prefetcher.passes(content)
                return tensor
        if content.is_streamed and stretch is not None:
            self.prefetcher.prefetch_to_device(stretch)
        return tensor

    def _learn(self, handle: "Stashed") -> None:
        """Learn the demand of the operation that asks, for the next content of this kind."""
        place, reading = handle.content.place, handle.content.reading
        kind = None if reading is None else reading.kind
        demand = None if kind is None or self.graph is None else self.graph.running_demand(handle)
        if reading is None or demand is None:
            return
        reading.learn(demand)
        if reading.trusts_learned and place.plan.within(demand) != place.plan:
            raise StashError(
                f"{place.label}: backward needs the tensor exactly, and did not in the "
                f"steps before, so that it was encoded with a loss; from the next step on it is not"
            )

    def _forward(self, content: Content, source: Any, spec: TensorSpec) -> Any:
        """Return the tensor for a reader while the bytes have not left."""
        place, residency = content.place, self.residency
        if content.loses:
            tensor = place.round_trip(source, content.spec, spec)
        elif residency is None:
            tensor = place.copy(source, content.spec, spec)
        else:
            tensor = place.forward(source, content.spec, spec, may_give=residency.may_give(content))
        if tensor is not source:  # else its version was compared
            content.raise_failure()
        return tensor


def _refuse() -> NoReturn:
    raise StashError(
        "a stash or a wrap was made before this process was forked: it belongs to the parent, with all that it stored. "
        "Make one of its own in the child; a model that is wrapped already needs tensorstash.unwrap(model) first"
    )


class KeptHandle:
    """A tensor that stays as it is, for recipes, which refer to it weakly and ask whether the graph has made it."""

    __slots__ = ("__weakref__", "is_made", "kept", "state", "tensor")

    def __init__(self, kept: Kept, *, is_made: bool) -> None:
        self.kept, self.is_made = kept, is_made
        self.state, self.tensor, _ = kept

    def peek(self) -> Any:
        """Return the tensor, to look at it and drop it, after the version check."""
        state, tensor, version = self.kept
        now = state.version(tensor)
        if now != version:
            raise modified(state.backend.describe(tensor), now, version)
        return tensor


class Stashed:
    """A layout of a content, which several handles may share; without a stretch it is the output of a recipe."""

    __slots__ = ("__weakref__", "content", "spec", "state", "stretch", "wants_reader")

    def __init__(self, state: SessionState, content: Content, stretch: Stretch | None, spec: TensorSpec) -> None:
        self.state, self.content, self.stretch, self.spec = state, content, stretch, spec
        self.wants_reader = True
        """Whether the demand of the operation that saved it is still unknown."""

    def __call__(self) -> Any:
        return SessionState.restore(self)

    def is_read_by(self, demand: Demand) -> None:
        """Note the demand of the operation that saved it."""
        if self.wants_reader:
            self.wants_reader = False
            if self.content.reading is not None:
                self.content.reading.is_read_by(demand)

    @property
    def is_exact(self) -> bool:
        """Whether it comes back equal to the bit, whatever reads it."""
        return self.content.place.is_lossless

    def peek(self) -> Any:
        """Return the tensor to look at it and drop it; nobody is told, and nothing is read ahead."""
        return self.content.peek(self.spec)
