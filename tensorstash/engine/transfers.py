"""Copies between a device and the host beside the computation, and the argument why none of them races.

Each device has two streams of its own besides the program's: one for copies out, one for copies back. Five rules order
them; none of them makes the host wait for the device. *Compute* is the stream that is current where the rule is
applied; it is asked for each time, since programs run under streams of their own.

1. A copy out begins after earlier work of compute: the source is written. (The copy stream waits for a point of
   compute.)
2. The source is held until the copy has ended, or until compute waits for its end: its memory belongs to compute, so
   whatever is allocated there next is written after the copy. Where it belongs to yet another stream, the allocator was
   told that compute uses it, and waits for compute before it hands the memory to that stream. Compute waits only where
   the budget of sources is used up, or when no saved tensor is left: backward begins with those saved last, whose
   copies have not ended, and would wait for them just as they are let go.
3. A buffer to copy back into is allocated for compute, and the copy begins after earlier work of compute:
   whoever had that memory earlier is done with it.
4. A copy back begins after the copy out of the same bytes.
5. Compute waits for the end of a copy back before the tensor is handed out, and before its memory is freed. A tensor
   that was brought back for another stream than the one that asks is not handed out, but brought back again.

Host memory of a copy is held until the copy has ended, whatever becomes of the tensor.

The source may be modified in place by the program after it was saved and before it is copied; the version says so, and
the tensor is refused when it is asked for, as autograd refuses it.
"""

import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

from tensorstash.abilities import Event, Stream, Streams
from tensorstash.errors import is_out_of_memory
from tensorstash.host.arrays import Array, as_bytes
from tensorstash.host.budget import ByteBudget, Lease, Shares
from tensorstash.host.pinned import PinnedMemory
from tensorstash.policies.limits import AUTO, Limits
from tensorstash.spec import TensorSpec

MOST_TOGETHER = 32 * 2**20
"""Bytes of copies that go together, but for one that is larger: the first waits for the last."""

_GROUPS = 2  # near the computation at least: one is used up while the other comes or goes

_UNIT = 512  # bytes; host memory of a copy begins at multiples of it, as devices like it


class Transfer:
    """A group of copies between a device and the host: they begin together, and have one end. Thread-safe.

    It joins those that are under way in the same copy stream, of which ``record`` returns the present point. Its device
    memory, a source or a target of each copy, is used in a compute stream, and counted if there is a lease.
    """

    __slots__ = ("__weakref__", "_arrays", "_end", "_record", "held", "lease", "stream")

    def __init__(
        self,
        arrays: Sequence[Array],
        held: Sequence[Any],
        stream: Stream,
        under_way: "deque[Transfer]",
        lease: Lease | None,
        launch: Callable[[], object],
        record: Callable[[], Event],
    ) -> None:
        self._arrays, self.stream, self.lease, self._record = arrays, stream, lease, record
        self.held: dict[int, Any] = dict(enumerate(held))
        """Device memory of each copy, by its number, until it is dropped."""
        self._end: Event | None = None
        under_way.append(self)  # first: an interrupt must not free memory that a device reads or writes
        try:
            launch()
        finally:
            self._end = record()

    @property
    def end(self) -> Event:
        """A point of the copy stream after all of them; for the first time once they have begun, or never will."""
        if self._end is None:
            self._end = self._record()
        return self._end

    def take(self, number: int) -> None:
        """Drop the device memory of one copy, which is in other hands."""
        self.held.pop(number, None)
        if not self.held:
            self.lease = None

    def dismiss(self, number: int) -> None:
        """Let compute wait for the end, and drop the device memory of one copy; safe in a finalizer."""
        if number in self.held:
            self.stream.wait_event(self.end)
            self.take(number)

    def release(self) -> None:
        """Let compute wait for the end, and drop all device memory; idempotent, never blocks, safe in a finalizer."""
        if self.held:
            self.stream.wait_event(self.end)
            self.held, self.lease = {}, None

    def wait(self) -> None:
        """Make the calling thread wait for the end, and drop the device memory."""
        self.end.synchronize()
        self.held, self.lease = {}, None

    def ended(self, *, is_out: bool) -> None:
        """Drop the host memory of copies that have ended, and the sources of those to the host."""
        self._arrays = ()
        if is_out:
            self.held, self.lease = {}, None


Part = tuple[Transfer, int]
"""One copy of a group: its transfer, and its number there."""

Flight = tuple[Transfer, int, Array]
"""The same of a copy to the host, and its memory there."""

Copy = tuple[Array, TensorSpec, Event | None]
"""Bytes to bring back, the spec of their tensor, and the end of the copy that they came by unless that is over."""


class Transfers:
    """The copies of one session, and budgets of their sources and of what comes back early. Thread-safe."""

    def __init__(self, streams: Streams[Any], limits: Limits, shares: Shares) -> None:
        self.streams = streams
        most = limits.pinned_bytes
        self.pinned = streams.pinned if most is None else PinnedMemory(streams.locked_pages, most)
        self.out_budget, self.back_budget = ByteBudget(limits.in_flight_bytes), ByteBudget(limits.ahead_bytes)
        for budget, limit in ((self.out_budget, limits.in_flight), (self.back_budget, limits.ahead)):
            if limit == AUTO:
                shares.follow(budget, on_device=True)
        self._under_way: dict[tuple[str, str], tuple[Stream, deque[Transfer]]] = {}
        """The copy stream of each device and direction, and the transfers there that may not have ended, in order."""
        self.sent: Counter[str] = Counter()
        """Bytes of copies out so far, by device."""
        self.saved: set[int] = set()
        """Identities of the contents of which there may be copies."""
        self.compute: Callable[[str], Any] = streams.current_stream
        """Returns the stream of a device's computation, as it is now; looked up once, since every copy asks."""
        self._pid = os.getpid()
        self._was_full = False  # in this step, so that nothing is read ahead: each refusal makes a device wait
        self._lock = threading.Lock()

    def out(self, copies: Sequence[tuple[Any, Any, int]], device: str, compute: Stream) -> list[Flight] | None:
        """Start copies to the host that go together; return None if there is no host memory for them.

        Each is of a contiguous tensor, beside the one that keeps its memory, and its bytes.
        """
        streams, budget = self.streams, self.out_budget
        sources, held, sizes = map(list, zip(*copies, strict=True))
        parts = [slice(0, 0)]
        for size in sizes:
            start = -(-parts[-1].stop // _UNIT) * _UNIT
            parts.append(slice(start, start + size))
        nbytes = sum(sizes)
        with self._lock:
            self._forget_ended()  # copies back hold host memory of the last step
            block = self.pinned.take(parts[-1].stop)
            if block is None:
                return None
            arrays = list(map(block.__getitem__, parts[1:]))
            stream, under_way = self._under_way.get((device, "out")) or self._begun(device, "out")
            lease = self._room_for(nbytes) if budget.limit else None
            streams.use_in(held, compute)
            stream.wait_event(streams.recorded(compute))
            launch, record = partial(streams.copy_out, sources, arrays, stream), partial(streams.recorded, stream)
            transfer = Transfer(arrays, held, compute, under_way, lease, launch, record)
            self.sent[device] += nbytes
        if lease is None:
            transfer.release()
        return list(zip(repeat(transfer, len(arrays)), range(len(arrays)), arrays, strict=True))

    def back(self, copies: Sequence[Copy], lease: Lease | None, *, is_prefetch: bool) -> Transfer:
        """Start copies to one device that go together: all, or as many of the first as there is memory for.

        For a prefetch nothing waits for memory: nobody has asked yet.
        """
        streams, device = self.streams, copies[0][1].device
        compute = self.compute(device)
        targets: list[Any] = []
        with self._lock:
            stream, under_way = self._under_way.get((device, "back")) or self._begun(device, "back")
            self._forget_ended()
            for _, spec, _ in copies:
                try:
                    targets.append(streams.empty(spec))
                    continue
                except Exception as error:
                    is_full = is_out_of_memory(error)
                    self._was_full |= is_full
                    if not is_full or (is_prefetch and not targets):
                        raise
                if is_prefetch:
                    break
                self._finish()  # the device is full: once sources have gone
                targets.append(streams.empty(spec))
            stream.wait_event(streams.recorded(compute))
            last = None
            for _, _, after in copies:
                if after is not None and after is not last:
                    stream.wait_event(after)
                last = after
            arrays = [data for data, _, _ in copies[: len(targets)]]
            launch, record = partial(streams.copy_in, arrays, targets, stream), partial(streams.recorded, stream)
            return Transfer(arrays, targets, compute, under_way, lease, launch, record)

    def leave(self, arrival: Part | None) -> None:
        """Note that a content has gone, and the copy back that was for it; never blocks, safe in a finalizer."""
        if self._pid != os.getpid():  # a forked child, whose copies are its parent's
            return
        if arrival is not None:
            arrival[0].dismiss(arrival[1])
        if not self.saved:  # else the sources of copies out are dropped when these have ended
            for (_, direction), (_, under_way) in list(self._under_way.items()):
                if direction == "out":
                    for transfer in list(under_way):
                        transfer.release()

    def near(self, nbytes: int, *, is_group: bool = True) -> tuple[Lease, int] | None:
        """Take device memory for a tensor and a group that may join it, if there is room; return their bytes, too."""
        budget, limit = self.back_budget, self.back_budget.limit
        # One that is larger than all there is may be there alone.
        room = max(nbytes, min(limit // _GROUPS, MOST_TOGETHER) * is_group)
        most = min(room, limit)
        if not limit or self._was_full or (not budget.gone and budget.taken + most > limit):
            return None
        lease = budget.try_acquire(most)
        return None if lease is None else (lease, room)

    def staged(self, data: Array, device: str) -> Array:
        """Return a copy in page-locked memory for a device, or the array itself where there is none left."""
        with self.streams.on_device(device):
            pages = self.pinned.take(data.nbytes)
        if pages is None:
            return data
        pages[...] = as_bytes(data)
        return pages.view(data.dtype).reshape(data.shape)

    def arrived(self, transfer: Transfer, number: int, device: str) -> Any:
        """Return the tensor of a copy back, for work of the current stream; None if it is there for another one."""
        target = transfer.held.get(number)
        if target is None or transfer.stream != self.compute(device):
            transfer.dismiss(number)
            return None
        transfer.stream.wait_event(transfer._end or transfer.end)
        return target

    def lent(self, tensor: Any, device: str) -> None:
        """Tell the allocator that a tensor which has not left is read in the current stream."""
        with self._lock:
            self._forget_ended()  # backward begins with tensors that have not left, when the device has its peak
        self.used_here(tensor, device)

    def used_here(self, tensor: Any, device: str) -> Any:
        """Return a tensor that has stayed on its device, for work of the current stream."""
        self.streams.use_in([tensor], self.compute(device))
        return tensor

    def end_step(self) -> None:
        """Give up host memory that the last steps have not needed, and read ahead again on a device that was full."""
        self._was_full = False
        self.pinned.end_step()
        self.out_budget.count_anew()
        self.back_budget.count_anew()

    def drain(self) -> None:
        """Wait for the end of all copies that have begun."""
        with self._lock:
            ends = [under_way[-1].end for _, under_way in self._under_way.values() if under_way]
        for end in ends:  # without the lock, so that other threads go on
            end.synchronize()
        with self._lock:
            self._forget_ended()

    def _forget_ended(self) -> None:
        """Drop the memory of copies that have ended, under the lock."""
        for (_, direction), (_, under_way) in self._under_way.items():
            # Each has been started: its end is there, and asked for without a frame.
            while under_way and (under_way[0]._end or under_way[0].end).query():
                under_way.popleft().ended(is_out=direction == "out")

    def _room_for(self, nbytes: int) -> Lease:
        """Count bytes of a source, alone if it is larger than the budget; the oldest go until there is room."""
        budget, sides, waiting = self.out_budget, self._under_way.items(), None
        while (lease := budget.try_acquire(min(nbytes, budget.limit))) is None:
            waiting = waiting or (each for (_, way), (_, side) in sides if way == "out" for each in side if each.held)
            oldest = next(waiting, None)
            if oldest is None:
                budget.count_anew()  # an interrupt may have left bytes
            else:
                oldest.release()
        return lease

    def _begun(self, device: str, direction: str) -> tuple[Stream, deque[Transfer]]:
        """Return the copy stream of a device that copies for the first time, where nothing is under way."""
        side = self._under_way[device, direction] = self.streams.side_stream(device, direction), deque()
        return side

    def _finish(self, device: str | None = None) -> None:
        """Wait for the end of all copies of a device or of all, so that host memory may go."""
        for (owner, _), (_, under_way) in self._under_way.items():
            while under_way and device in (None, owner):
                under_way[0].release()
                under_way[0].end.synchronize()
                under_way.popleft()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Host memory must outlive the copies. Not while the interpreter ends: then the device may be gone already.
        # Nor in a forked child, which must not touch it.
        if not is_finalizing() and self._pid == os.getpid():
            for device in {device for device, _ in self._under_way}:
                with self.streams.on_device(device):  # a worker may be the last that knew it
                    self._finish(device)
