"""One copy between a device and the host, and the copies of a device in one direction."""

from collections import deque
from collections.abc import Callable
from typing import Any

from tensorstash.abilities import Event, Stream
from tensorstash.host.arrays import Array
from tensorstash.host.budget import Lease


class Transfer:
    """A copy between a device and the host, under way or about to begin. Thread-safe.

    Args:
        array: its host memory.
        held: keeps its device memory: the source, or the tensor that is copied into.
        stream: the compute stream that the device memory is used in.
        side: the copies of its direction.
        lease: of the device memory, in the budget where it is counted; None if it is not.
        launch: puts it into the copy stream.
    """

    __slots__ = ("__weakref__", "_end", "_lease", "_record", "array", "held", "stream")

    def __init__(
        self,
        array: Array,
        held: Any,
        stream: Stream,
        side: "SideStream",
        lease: Lease | None,
        launch: Callable[[], object],
    ) -> None:
        self.array = array
        self.held: Any = held
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
        """A point of the copy stream after it; for the first time once it has begun, or never will."""
        if self._end is None:
            self._end = self._record()
        return self._end

    @property
    def is_counted(self) -> bool:
        """Whether a budget has room for its device memory, so that it may be held for longer."""
        return self._lease is not None

    def release(self) -> None:
        """Let compute wait for the end, and drop the device memory; idempotent, never blocks, safe in a finalizer."""
        if self.held is not None:
            self.stream.wait_event(self.end)
            self.drop()

    def drop(self) -> None:
        """Drop the device memory of a copy that has ended, or whose end compute waits for."""
        self.held = self._lease = None

    def wait(self) -> Array:
        """Make the calling thread wait for the end, drop the device memory and return the host memory."""
        self.end.synchronize()
        self.drop()
        return self.array


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

    def release_oldest(self) -> None:
        """Let compute wait for the oldest copy to the host that holds its source."""
        for transfer in self.transfers if self.is_out else ():
            if transfer.held is not None:
                transfer.release()
                break

    def finish(self) -> None:
        """Wait for the end of all copies, so that host memory may go."""
        while self.transfers:
            self.transfers[0].release()
            self.transfers[0].end.synchronize()
            self.transfers.popleft()
