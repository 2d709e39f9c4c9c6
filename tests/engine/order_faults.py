"""The orders between copies and the computation, each taken away: what a session may be built of to be wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, ClassVar

from tensorstash.engine.session import Session
from tensorstash.engine.transfers import Transfer, Transfers
from tensorstash.host.budget import Shares


def with_copies(session: Session[Any], copies: type[Transfers]) -> Session[Any]:
    """Return a session whose copies are those of another class, in page-locked memory of their own."""
    limits = replace(session.limits, pinned=session.limits.pinned or 2**40)
    session.sender.transfers = session.places.transfers = copies(session.backend.streams, limits, Shares())
    return session


class BackendFault:
    """Stands for a whole object that a backend gives; ``aside`` lets a block submit to another stream of a device."""

    ability: ClassVar[str] = "streams"

    def __init__(self, whole: Any, aside: Callable[[str], AbstractContextManager[Any]]) -> None:
        self.whole, self.aside = whole, aside

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)

    @classmethod
    def put(cls, backend: Any, aside: Callable[[str], AbstractContextManager[Any]]) -> Any:
        """Return a backend after the fault was put into it."""
        setattr(backend, cls.ability, cls(getattr(backend, cls.ability), aside))
        return backend


class _Blind:
    """A stream whose waits are only heard if they are for certain events."""

    def __init__(self, stream: Any, hears: Callable[[Any], bool]) -> None:
        self.stream, self._hears = stream, hears

    def wait_event(self, event: Any) -> None:
        if self._hears(event):
            self.stream.wait_event(event)


class _Unwrapping:
    """The streams of a backend that take a blind stream for the one inside."""

    def __init__(self, streams: Any) -> None:
        self._streams = streams

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._streams, name)
        return lambda *given: method(*(each.stream if isinstance(each, _Blind) else each for each in given))


@contextmanager
def blinded(transfers: Any, device: str, direction: str, hears: Callable[[Any], bool]) -> Iterator[None]:
    """Let a copy stream hear certain events alone until the block ends."""
    streams, key = transfers.streams, (device, direction)
    stream, under_way = transfers._under_way.get(key) or transfers._begun(*key)
    transfers.streams, transfers._under_way[key] = _Unwrapping(streams), (_Blind(stream, hears), under_way)
    try:
        yield
    finally:
        transfers.streams, transfers._under_way[key] = streams, (stream, under_way)


class CopyOutBeforeTheSourceIsWritten(Transfers):
    """Rule 1: a copy out begins after what compute was given before."""

    def out(self, *arguments: Any) -> Any:
        with blinded(self, arguments[1], "out", lambda event: False):
            return super().out(*arguments)


class _Careless(Transfer):
    """Drops device memory without an order between the copy and what comes after it."""

    __slots__ = ()

    def release(self) -> None:
        self.held, self.lease = {}, None

    def dismiss(self, number: int) -> None:
        self.take(number)


class SourceReusedBeforeItsCopyEnded(Transfers):
    """Rule 2: compute waits for the end of a copy out before its source is dropped."""

    def out(self, *arguments: Any) -> Any:
        out: Any = super().out(*arguments)
        out[0][0].__class__ = _Careless
        return out


class SourceOfAnotherStreamReused(BackendFault):
    """Rule 2: the allocator is told that compute uses what belongs to another stream."""

    def use_in(self, tensors: Any, stream: Any, /) -> None:
        pass


class SourceReadOnAnotherStreamReused(Transfers):
    """Rule 2: the allocator is told of another stream that reads a source which has not left."""

    def lent(self, tensor: Any, device: str) -> None:
        pass


class _BackLane(Transfers):
    def back(self, copies: Any, lease: Any, *, is_prefetch: bool) -> Any:
        with blinded(self, copies[0][1].device, "back", self._hears([after for _, _, after in copies])):
            return super().back(copies, lease, is_prefetch=is_prefetch)

    def _hears(self, after: list[Any]) -> Callable[[Any], bool]:
        raise NotImplementedError


class ReloadIntoMemoryThatIsStillUsed(_BackLane):
    """Rule 3: a copy back begins after what compute was given before its buffer was allocated."""

    def _hears(self, after: list[Any]) -> Callable[[Any], bool]:
        return lambda event: any(event is each for each in after)


class ReloadOvertakesItsOwnOffload(_BackLane):
    """Rule 4: a copy back begins after the copy out of the same bytes."""

    def _hears(self, after: list[Any]) -> Callable[[Any], bool]:
        return lambda event: all(event is not each for each in after)


class BufferFromThePoolOfTheCopyStream(BackendFault):
    """Rule 3: a buffer to copy back into is allocated for compute."""

    def empty(self, spec: Any, /) -> Any:
        with self.aside(spec.device):
            return self.whole.empty(spec)


class TensorHandedOutBeforeItArrived(Transfers):
    """Rule 5: compute waits for the end of a copy back before the tensor is handed out."""

    def arrived(self, copy: Any, number: int, device: str) -> Any:
        stream, copy.stream = copy.stream, _Blind(copy.stream, lambda event: False)
        try:
            is_here = stream == self.compute(device)
            return copy.held.get(number) if is_here else super().arrived(copy, number, device)
        finally:
            copy.stream = stream


class ArrivalDroppedUnderItsCopy(Transfers):
    """Rule 5: compute waits for the end of a copy back before its memory is freed."""

    def back(self, *arguments: Any, is_prefetch: bool) -> Any:
        copy = super().back(*arguments, is_prefetch=is_prefetch)
        copy.__class__ = _Careless
        return copy


class TensorHandedToAnotherStream(Transfers):
    """Rule 5: what was brought back for one stream is not handed to another."""

    def arrived(self, copy: Any, number: int, device: str) -> Any:
        copy.stream.wait_event(copy.end)
        return copy.held.get(number)


class StaleComputeStream(Transfers):
    """The current stream is asked for at each use."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        known: dict[str, Any] = {}
        ask = self.compute
        self.compute = lambda device: known.setdefault(device, ask(device))


class HostMemoryReusedBeforeItsCopyEnded(Transfers):
    """Host memory of a copy is held until the copy has ended."""

    def back(self, copies: Any, lease: Any, *, is_prefetch: bool) -> Any:
        copy = super().back(copies, lease, is_prefetch=is_prefetch)
        self._under_way[copies[0][1].device, "back"][1].pop()
        copy.ended(is_out=False)
        return copy


class ViewPackedOnTheCopyStream(BackendFault):
    """What is not one run of memory is packed by compute."""

    ability = "layouts"

    def dense(self, tensor: Any, spec: Any, /) -> Any:
        with self.aside(spec.device):
            return self.whole.dense(tensor, spec)


class HostReadsBeforeTheCopyEnded(Transfers):
    """A worker waits for the copy before it looks at the bytes."""

    def out(self, *arguments: Any) -> Any:
        out: Any = super().out(*arguments)
        out[0][0].__class__ = _NeverWaits
        return out


class _NeverWaits(Transfer):
    __slots__ = ()

    def wait(self) -> None:
        pass


class PayloadOnDeviceReusedByItsOwnStream(Transfers):
    """The allocator is told of the stream that uses what has stayed on the device."""

    def used_here(self, tensor: Any, device: str) -> Any:
        return tensor
