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
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tensorstash.abilities import Backend, Event, Stream, Streams
from tensorstash.engine.transfer import SideStream, Transfer
from tensorstash.errors import is_out_of_memory
from tensorstash.host.arrays import Array, as_bytes
from tensorstash.host.budget import ByteBudget, Lease, Shares
from tensorstash.host.pinned import PinnedMemory
from tensorstash.policies.limits import AUTO, Limits
from tensorstash.spec import TensorSpec

MOST_TOGETHER = 32 * 2**20
"""Bytes of copies that go together, but for one that is larger: the first waits for the last."""

_GROUPS = 2
"""That fit the tensors near the computation at least: one is used up while the other comes or goes."""

_UNIT = 512
"""Host memory of a copy begins at multiples of it, in bytes, as devices like it."""

Part = tuple[Transfer, int]
"""One copy of a group: its transfer, and its number there."""

Outgoing = tuple[Transfer, Sequence[Array]]


class Transfers:
    """The copies of one session, on all devices. Thread-safe.

    Args:
        streams: how things are done.
        pinned: where host memory is from.
        out_bytes: sources that may be held for copies out, in bytes; beyond that compute waits for the oldest.
        back_bytes: tensors that may be brought back before they are asked for, in bytes.
    """

    def __init__(self, streams: Streams[Any], pinned: PinnedMemory, *, out_bytes: int, back_bytes: int) -> None:
        self._streams = streams
        self._pinned = pinned
        self.out_budget = ByteBudget(out_bytes)
        """Of sources."""
        self.back_budget = ByteBudget(back_bytes)
        """Of tensors that are brought back early."""
        self._side_streams: dict[tuple[str, str], SideStream] = {}
        self.sent: Counter[str] = Counter()
        """Bytes of copies out so far, by device."""
        self.saved: set[int] = set()
        """Identities of the contents of which there may be copies."""
        self.on_device = streams.on_device
        self.compute: Callable[[str], Any] = streams.current_stream
        """Returns the stream of a device's computation, as it is now; looked up once, since every copy asks."""
        self._pid = os.getpid()
        self.was_full = False
        """Whether a device was full in this step, so that nothing is read ahead: each refusal makes it wait."""
        self._lock = threading.Lock()

    def out(self, copies: Sequence[tuple[Any, Any, int]], device: str, compute: Stream) -> Outgoing | None:
        """Start copies to the host that go together; return None if there is no host memory for them.

        Args:
            copies: for each a contiguous tensor, what keeps its memory (itself, or the tensor that it is a view of),
                and its bytes.
            device: of all of them.
            compute: the stream of the computation, as it is now.

        Returns:
            The transfer, and the host memory of each copy.
        """
        streams = self._streams
        sources, held, sizes = map(list, zip(*copies, strict=True))
        parts = [slice(0, 0)]
        for size in sizes:
            start = -(-parts[-1].stop // _UNIT) * _UNIT
            parts.append(slice(start, start + size))
        nbytes = sum(sizes)
        with self._lock:
            self._forget_ended()  # copies back hold host memory of the last step
            block = self._pinned.take(parts[-1].stop)
            if block is None:
                return None
            arrays = list(map(block.__getitem__, parts[1:]))
            side = self._side_streams.get((device, "out")) or self._side_stream(device, "out")
            budget = self.out_budget
            lease = budget.try_acquire(min(nbytes, budget.limit)) if budget.limit else None
            if lease is None and budget.limit:
                lease = self._room_for(nbytes)
            streams.use_in(held, compute)
            side.stream.wait_event(streams.recorded(compute))
            launch = partial(streams.copy_out, sources, arrays, side.stream)
            transfer = Transfer(arrays, held, compute, side, lease, launch)
            self.sent[device] += nbytes
        if lease is None:
            transfer.release()
        return transfer, arrays

    def back(
        self,
        copies: Sequence[tuple[Array, TensorSpec, Event | None]],
        lease: Lease | None,
        *,
        is_prefetch: bool,
    ) -> Transfer:
        """Start copies to a device that go together: all, or as many of the first as there is memory for.

        Args:
            copies: for each the bytes, one-dimensional ``uint8``; the spec of the tensor to bring back; and the end of
                the copy that these bytes came by, unless it is known to have ended.
            lease: of the tensors in the budget where they are counted; None if they are not.
            is_prefetch: whether nobody has asked for them yet.
        """
        streams, device = self._streams, copies[0][1].device
        compute = self.compute(device)
        targets: list[Any] = []
        with self._lock:
            side = self._side_streams.get((device, "back")) or self._side_stream(device, "back")
            self._forget_ended()
            for _, spec, _ in copies:
                try:
                    targets.append(streams.empty(spec))
                    continue
                except Exception as error:
                    is_full = is_out_of_memory(error)
                    self.was_full |= is_full
                    if not is_full or (is_prefetch and not targets):
                        raise
                if is_prefetch:
                    break
                for other in self._side_streams.values():  # the device is full: once sources have gone
                    other.finish()
                targets.append(streams.empty(spec))
            side.stream.wait_event(streams.recorded(compute))
            last = None
            for _, _, after in copies:
                if after is not None and after is not last:
                    side.stream.wait_event(after)
                last = after
            arrays = [data for data, _, _ in copies[: len(targets)]]
            launch = partial(streams.copy_in, arrays, targets, side.stream)
            return Transfer(arrays, targets, compute, side, lease, launch)

    def leave(self, arrival: Part | None) -> None:
        """Note that a content has gone; takes no lock and never blocks, safe in a finalizer.

        The sources of copies out are dropped when these have ended, as long as there are others that may be asked for.

        Args:
            arrival: a copy back that nobody has asked for, if there was one.
        """
        if self._pid != os.getpid():  # a forked child, whose copies are its parent's
            return
        if arrival is not None:
            arrival[0].dismiss(arrival[1])
        if not self.saved:
            for side in list(self._side_streams.values()):
                side.release_all()

    def has_streams(self, device: str) -> bool:
        """Whether a device works behind the program."""
        return self._streams.current_stream(device) is not None

    def why_wait(self, device: str) -> str | None:
        """Say why copies of a device make the program wait; None if they do not."""
        return self._streams.why_copies_wait(device)

    def near(self, nbytes: int, *, is_group: bool = True) -> tuple[Lease, int] | None:
        """Take device memory for tensors that backward is about to ask for; return None if there is no room.

        Args:
            nbytes: of the first; one that is larger than all there is may be there alone.
            is_group: whether others may join it, as many as soon follow the computation.

        Returns:
            The lease, and the bytes that they may have together.
        """
        budget = self.back_budget
        limit = budget.limit
        room = max(nbytes, min(limit // _GROUPS, MOST_TOGETHER) * is_group)
        most = min(room, limit)
        if not limit or self.was_full or (not budget.gone and budget.taken + most > limit):
            return None
        lease = budget.try_acquire(most)
        return None if lease is None else (lease, room)

    def staged(self, data: Array, device: str) -> Array:
        """Return a copy in page-locked memory for a device, or the array itself where there is none left."""
        with self._streams.on_device(device):
            pages = self._pinned.take(data.nbytes)
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
        self._streams.use_in([tensor], self.compute(device))
        return tensor

    def follow(self, stream: Stream, compute: Stream, tensor: Any) -> None:
        """Let later work of ``compute`` begin after that of ``stream``, which made a tensor."""
        compute.wait_event(self._streams.recorded(stream))
        self._streams.use_in([tensor], compute)

    def end_step(self) -> None:
        """Give up host memory that the last steps have not needed, and read ahead again on a device that was full."""
        self.was_full = False
        self._pinned.end_step()
        self.out_budget.count_anew()
        self.back_budget.count_anew()

    @property
    def pinned_bytes(self) -> int:
        """Host memory that is page-locked now, in bytes."""
        return self._pinned.locked_bytes

    def drain(self) -> None:
        """Wait for the end of all copies."""
        with self._lock:
            under_way = [transfer for side in self._side_streams.values() for transfer in side.transfers]
        for transfer in under_way:
            transfer.end.synchronize()
        with self._lock:
            self._forget_ended()

    def _forget_ended(self) -> None:
        """Drop the memory of copies that have ended, under the lock."""
        for side in self._side_streams.values():
            transfers = side.transfers
            # Each has been started: its end is there, and asked for without a frame.
            while transfers and (transfers[0]._end or transfers[0].end).query():
                transfers.popleft().ended(is_out=side.is_out)

    def _room_for(self, nbytes: int) -> Lease:
        """Count bytes of a source, which goes alone if it is larger than the budget; others go until there is room."""
        budget = self.out_budget
        while (lease := budget.try_acquire(min(nbytes, budget.limit))) is None:
            if not any(other.release_oldest() for other in self._side_streams.values()):
                budget.count_anew()  # an interrupt may have left bytes
        return lease

    def _side_stream(self, device: str, direction: str) -> "SideStream":
        key = device, direction
        side = self._side_streams.get(key)
        if side is None:
            stream = self._streams.side_stream(*key)
            record = partial(self._streams.recorded, stream)
            side = self._side_streams[key] = SideStream(stream, record, is_out=direction == "out")
        return side

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Host memory must outlive the copies. Not while the interpreter ends: then the device may be gone already.
        # Nor in a forked child, which must not touch it.
        if not is_finalizing() and self._pid == os.getpid():
            for (device, _), side in self._side_streams.items():
                with self.on_device(device):  # a worker may be the last that knew it
                    side.finish()


def transfers_of(backend: Backend[Any], limits: Limits, shares: Shares) -> Transfers | None:
    """Return the transfers between a backend's devices and the host; None where it has no streams.

    Args:
        backend: the framework's adapter.
        limits: byte budgets.
        shares: says how much may be on its way, where these do not.
    """
    streams = backend.streams
    if streams is None:
        return None
    most = limits.pinned_bytes
    pinned = streams.pinned if most is None else PinnedMemory(streams.locked_pages, most)
    transfers = Transfers(streams, pinned, out_bytes=limits.in_flight_bytes, back_bytes=limits.ahead_bytes)
    for budget, limit in ((transfers.out_budget, limits.in_flight), (transfers.back_budget, limits.ahead)):
        if limit == AUTO:
            shares.follow_on_device(budget)
    return transfers
