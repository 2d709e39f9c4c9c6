"""Copies between a device and the host that go together, and those of a device in one direction."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from tensorstash.abilities import Event, Stream
from tensorstash.host.arrays import Array
from tensorstash.host.budget import Lease


class Transfer:
    """A group of copies between a device and the host: they begin together, and have one end. Thread-safe.

    Args:
        arrays: host memory of each.
        held: keeps the device memory of each: its source, or the tensor that is copied into.
        stream: the compute stream that the device memory is used in.
        side: the copies of its direction.
        lease: of the device memory, in the budget where it is counted; None if it is not.
        launch: puts them into the copy stream.
    """

    __slots__ = ("__weakref__", "_arrays", "_end", "_lease", "_record", "held", "stream")

    def __init__(
        self,
        arrays: Sequence[Array],
        held: Sequence[Any],
        stream: Stream,
        side: "SideStream",
        lease: Lease | None,
        launch: Callable[[], object],
    ) -> None:
        self._arrays = arrays
        self.held: dict[int, Any] = dict(enumerate(held))
        """Device memory of each copy, by its number, until it is dropped."""
        self.stream = stream
        self._record = side.record
        self._end: Event | None = None
        self._lease = lease
        side.transfers.append(self)  # first: an interrupt must not free memory that a device reads or writes
        try:
            launch()
        finally:
            self._end = self._record()

    @property
    def end(self) -> Event:
        """A point of the copy stream after all of them; for the first time once they have begun, or never will."""
        if self._end is None:
            self._end = self._record()
        return self._end

    @property
    def is_counted(self) -> bool:
        """Whether a budget has room for the device memory, so that it may be held for longer."""
        return self._lease is not None

    def take(self, number: int) -> None:
        """Drop the device memory of one copy, which is in other hands."""
        self.held.pop(number, None)
        if not self.held:
            self._lease = None

    def dismiss(self, number: int) -> None:
        """Let compute wait for the end, and drop the device memory of one copy; safe in a finalizer."""
        if number in self.held:
            self.stream.wait_event(self.end)
            self.take(number)

    def release(self) -> None:
        """Let compute wait for the end, and drop all device memory; idempotent, never blocks, safe in a finalizer."""
        if self.held:
            self.stream.wait_event(self.end)
            self.drop()

    def drop(self) -> None:
        """Drop the device memory of copies that have ended, or whose end compute waits for."""
        self.held, self._lease = {}, None

    def wait(self) -> None:
        """Make the calling thread wait for the end, and drop the device memory."""
        self.end.synchronize()
        self.drop()

    def ended(self, *, is_out: bool) -> None:
        """Drop the host memory of copies that have ended, and with it the sources of those to the host."""
        self._arrays = ()
        if is_out:
            self.held, self._lease = {}, None


class SideStream:
    """The copies of one device in one direction that may not have ended, in order.

    Args:
        stream: where they are done.
        record: returns its present point.
        is_out: whether they go to the host, so that their device memory is not needed afterwards.
    """

    __slots__ = ("is_out", "record", "stream", "transfers")

    def __init__(self, stream: Stream, record: Callable[[], Event], *, is_out: bool) -> None:
        self.stream = stream
        self.record = record
        self.is_out = is_out
        self.transfers: deque[Transfer] = deque()

    def release_all(self) -> None:
        """Drop the sources of all copies to the host, for whose end compute waits."""
        for transfer in list(self.transfers) if self.is_out else ():
            transfer.release()

    def release_oldest(self) -> bool:
        """Let compute wait for the oldest copies to the host that hold their sources; return whether there are any."""
        oldest = next((transfer for transfer in self.transfers if transfer.held), None) if self.is_out else None
        if oldest is not None:
            oldest.release()
        return oldest is not None

    def finish(self) -> None:
        """Wait for the end of all copies, so that host memory may go."""
        while self.transfers:
            self.transfers[0].release()
            self.transfers[0].end.synchronize()
            self.transfers.popleft()
