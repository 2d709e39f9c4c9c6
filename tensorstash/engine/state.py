"""The state that a session and its handles share, also after the session itself has gone."""

from collections.abc import Callable
from typing import Any

from tensorstash.abilities import (
    Backend,
    SupportsGraph,
)
from tensorstash.engine.advice import Adviser
from tensorstash.engine.ledger import Ledger
from tensorstash.engine.prefetch import Prefetcher
from tensorstash.engine.readers import Demands
from tensorstash.engine.residency import Residency
from tensorstash.errors import modified

Kept = tuple["SessionState", Any, int]
"""A tensor that stays as it is: who has kept it, an alias, its in-place version when it was saved.

A bare tuple, since most saved tensors are kept, and each costs one of these."""

Handle = Kept | Callable[[], Any]
"""Handles, the results of ``pack``. :meth:`SessionState.restore` makes the saved tensor of one, any number of times, on
any thread.

The graph owns the handle, and the handle owns its share of a slot.
"""


class SessionState:
    """The parts of a session that its handles need. Holds no payload.

    Args:
        backend: the framework's adapter.
        ledger: where everything is counted.
        adviser: warns where the session has no effect.
        prefetcher: reads ahead of requests.
        residency: of the session's contents; None where the framework does not tell who holds a memory.
    """

    def __init__(
        self,
        backend: Backend[Any],
        ledger: Ledger,
        adviser: Adviser,
        prefetcher: Prefetcher,
        residency: Residency | None,
    ) -> None:
        self.backend = backend
        self.adviser = adviser
        self.ledger = ledger
        self.prefetcher, self.residency = prefetcher, residency
        # Looked up once: these run for every tensor, and to ask for an ability takes longer than to use it.
        self.version = backend.version
        graph = backend if isinstance(backend, SupportsGraph) else None
        self.compiled_graph = None if graph is None else graph.compiled_graph
        self.running_demand = None if graph is None else graph.running_demand
        self.may_write = bool if graph is None else graph.may_write
        self.demands = Demands()
        self.was_asked = False
        """Whether a handle has been restored since this was last set to False."""

    def step_began(self) -> None:
        """Forget that a handle was restored."""
        self.was_asked = False

    def asked(self, graph_bytes: int) -> None:
        """Note that a handle is restored, of this many bytes."""
        self.was_asked = True
        self.ledger.unpacked()
        if self.adviser.watches and self.compiled_graph is not None:
            graph = self.compiled_graph()
            if graph is not None:
                self.adviser.asked(graph, graph_bytes)

    @staticmethod
    def restore(handle: Handle) -> Any:
        """Return a saved tensor, after the version check that frameworks skip once hooks are set.

        Raises:
            SavedTensorModifiedError: it was modified in place since it was saved, or before its bytes were captured.
            StashError: the bytes could not be captured, loaded or decoded; the message names stage, codec and tensor.
        """
        if type(handle) is not tuple:
            return handle()  # type: ignore[operator]
        self, alias, version = handle  # without the frame of a bound method: most saved tensors come here
        now = self.version(alias)
        if now != version:
            raise modified(self.backend.describe(alias), now, version)
        self.was_asked = True
        return alias
