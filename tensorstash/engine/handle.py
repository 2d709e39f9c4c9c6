"""The handles that the autograd graph holds in place of saved tensors."""

from typing import Any

from tensorstash.engine.content import Content
from tensorstash.engine.state import Kept, SessionState
from tensorstash.engine.stretch import Stretch
from tensorstash.errors import StashError, modified
from tensorstash.protocols import Demand
from tensorstash.spec import TensorSpec


class KeptHandle:
    """A tensor that stays as it is, as :data:`Kept`, for recipes, which refer to it weakly.

    Args:
        kept: the handle that it would be otherwise.
        is_made: whether the graph has made the tensor, as far as that is known.
    """

    __slots__ = ("__weakref__", "is_made", "state", "tensor", "version")

    def __init__(self, kept: Kept, *, is_made: bool) -> None:
        (self.state, self.tensor, self.version), self.is_made = kept, is_made

    def __call__(self) -> Any:
        """Return the tensor; see :meth:`SessionState.restore`."""
        return SessionState.restore((self.state, self.tensor, self.version))

    def peek(self) -> Any:
        """Return the tensor, to look at it and drop it.

        Raises:
            SavedTensorModifiedError: it was modified in place since it was saved.
        """
        now = self.state.version(self.tensor)
        if now != self.version:
            raise modified(self.state.backend.describe(self.tensor), now, self.version)
        return self.tensor


class Stashed:
    """A tensor whose bytes are in a place, or on their way there.

    Several handles may share one content, each with a layout of its own.

    Args:
        state: of the session.
        content: holds the bytes.
        stretch: that it was saved in; None for the output of a recipe, whose inputs are asked for instead.
        spec: layout of the tensor.
    """

    __slots__ = ("__weakref__", "_spec", "_stretch", "content", "state", "wants_reader")

    def __init__(self, state: SessionState, content: Content, stretch: Stretch | None, spec: TensorSpec) -> None:
        self.state = state
        self.content = content
        self._stretch = stretch
        self._spec = spec
        self.wants_reader = True
        """Whether the demand of the operation that saved it is still unknown."""

    def is_read_by(self, demand: Demand) -> None:
        """Note the demand of the operation that saved it."""
        if self.wants_reader:
            self.wants_reader = False
            if self.content.reading is not None:
                self.content.reading.is_read_by(demand)

    def __call__(self) -> Any:
        """Return the saved tensor: its source if the bytes have not left and lose nothing, else a fresh tensor.

        Raises:
            SavedTensorModifiedError: it was modified in place before its bytes were captured.
            StashError: the bytes could not be captured, loaded or decoded; the message names stage, codec and tensor.
        """
        state, content, spec, stretch = self.state, self.content, self._spec, self._stretch
        state.asked(spec.nbytes)
        if stretch is not None:
            state.prefetcher.asked(stretch, content.index)
        if self.wants_reader and content.reading is not None:
            self._learn()
        # Once it is known, its capture is over: no source comes back.
        source = None if content.alias is None and not content.is_streamed else content.source
        if source is None:
            tensor = content.restore(spec)
        else:
            state.ledger.forwarded()
            tensor = self._forward(source)
        if stretch is not None and content.is_streamed:
            state.prefetcher.prefetch_to_device(stretch)
        return tensor

    @property
    def is_exact(self) -> bool:
        """Whether it comes back equal to the bit, whatever reads it."""
        return self.content.place.is_lossless

    def peek(self) -> Any:
        """Return the tensor to look at it and drop it; nobody is told, and nothing is read ahead."""
        return self.content.peek(self._spec)

    def _learn(self) -> None:
        """Learn the demand of the operation that asks, for the next content of this kind."""
        state, place, reading = self.state, self.content.place, self.content.reading
        kind = None if reading is None else reading.kind
        demand = None if kind is None or state.running_demand is None else state.running_demand(self)
        if reading is None or demand is None:
            return
        state.demands.learn(kind, demand)
        if reading.trusts_learned and place.plan.within(demand) != place.plan:
            raise StashError(
                f"{place.label}: backward needs the tensor exactly, and did not in the "
                f"steps before, so that it was encoded with a loss; from the next step on it is not"
            )

    def _forward(self, source: Any) -> Any:
        """Return the tensor for a reader while the bytes have not left."""
        content, spec, place, residency = self.content, self._spec, self.content.place, self.state.residency
        if content.loses:
            tensor = place.round_trip(source, content.spec, spec)
        elif residency is None:
            tensor = place.copy(source, content.spec, spec)
        else:
            tensor = place.forward(source, content.spec, spec, may_give=residency.may_give(content))
        if tensor is not source:  # else its version was compared
            content.raise_failure()
        return tensor
