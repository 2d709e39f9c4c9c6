"""What the graph holds in place of saved tensors whose asking is noted."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from tensorstash.engine.handle import Kept, Stashed
from tensorstash.engine.payloads.payload import Payload
from tensorstash.engine.planned.step import Seen
from tensorstash.engine.prefetch import Requests
from tensorstash.engine.recompute.inputs import KeptHandle
from tensorstash.engine.recompute.recomputed import RecomputedHandle
from tensorstash.engine.state import SessionState
from tensorstash.spec import TensorSpec

_LOOKING_S = 5e-5
"""What finding a recipe takes."""


R = TypeVar("R")


class Observer(Protocol):
    """Is told when a saved tensor is asked for.

    What is brought back is watched before :meth:`bring` ends, so that nobody takes the room between the two.
    """

    def ask(self, seen: Seen, give: Callable[[], R], /) -> R:
        """Take note that a saved tensor is asked for, and return what gives it."""
        ...

    def bring(self, nbytes: int, drop: Callable[[int], int], make: Callable[[], R], /) -> R:
        """Leave room for what is brought back, if need be where something was read ahead, and return it."""
        ...

    def watch_back(self, tensor: Any, content: object, nbytes: int, seen: Seen, /, *, is_fresh: bool) -> None:
        """Count so many bytes of a tensor that was brought back."""
        ...


class TrackedKept(KeptHandle):
    """The handle of a tensor that is kept, and whose asking is noted.

    Args:
        kept: what it would be otherwise.
        seen: what is known of the tensor.
        tracker: is told when it is asked for.
    """

    __slots__ = ("_tracker", "seen")

    def __init__(self, kept: Kept, seen: Seen, tracker: Observer) -> None:
        super().__init__(kept)
        self._tracker = tracker
        self.seen = seen

    def __call__(self) -> Any:
        """Return the saved tensor; see :func:`~tensorstash.engine.handle.restore`."""
        return self._tracker.ask(self.seen, super().__call__)


class TrackedStashed(Stashed):
    """The handle of a tensor that is stashed, and whose asking is noted from :attr:`tracker` on."""

    __slots__ = ("seen", "tracker")

    seen: Seen
    tracker: Observer | None

    def __init__(self, state: SessionState, payload: Payload, requests: Requests, spec: TensorSpec) -> None:
        super().__init__(state, payload, requests, spec)
        self.tracker = None

    def __call__(self) -> Any:
        """Return the saved tensor; see :class:`~tensorstash.engine.handle.Stashed`."""
        tracker = self.tracker
        if tracker is None:  # nobody but a recipe has it
            return super().__call__()
        return tracker.ask(self.seen, super().__call__)

    def _restore(self) -> Any:
        payload, tracker = self.payload, self.tracker
        if tracker is None:
            return super()._restore()
        source = payload.source
        if source is not None and self._gives_source():
            self.state.ledger.forwarded()
            return self._forward(source)
        source = None  # while room is made it may leave
        nbytes = 0 if payload.is_prefetched else payload.nbytes
        return tracker.bring(nbytes, self.state.prefetcher.drop, self._brought)

    def _brought(self) -> Any:
        payload = self.payload
        if payload.source is not None:
            tensor, is_counted = super()._restore(), False
        else:
            tensor, is_counted = payload.bring_back(self._spec)
        if not payload.is_prefetched and self.tracker is not None:  # or another will get the same
            nbytes = 0 if is_counted else payload.nbytes
            self.tracker.watch_back(tensor, payload, nbytes, self.seen, is_fresh=True)
        return tensor


class TrackedRecomputed(RecomputedHandle):
    """The handle of a tensor that is made again, and whose asking is noted.

    Args:
        handle: what it would be otherwise.
        seen: what is known of the tensor.
        tracker: is told when it is asked for.
    """

    __slots__ = ("_tracker", "seen")

    def __init__(self, handle: RecomputedHandle, seen: Seen, tracker: Observer) -> None:
        super().__init__(handle.state, handle.content, handle.saved, handle.spec)
        self._tracker = tracker
        self.seen = seen

    def __call__(self) -> Any:
        """Return the saved tensor; see :class:`~tensorstash.engine.recompute.recomputed.RecomputedHandle`."""
        return self._tracker.ask(self.seen, self._bring)

    def _bring(self) -> Any:
        due = 0 if self.content.is_prefetched else self.spec.nbytes
        return self._tracker.bring(due, self.state.prefetcher.drop, self._brought)

    def _brought(self) -> Any:
        tensor, content = super().__call__(), self.content
        if not content.is_prefetched:
            self._tracker.watch_back(tensor, content, self.spec.nbytes, self.seen, is_fresh=False)
        if content.seconds is not None:
            self.seen.remade_s = content.seconds + _LOOKING_S
        return tensor
