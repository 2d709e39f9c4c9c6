"""A saved tensor on a device with streams: captured beside the computation, and brought back ahead of it.

The program's thread only launches: kernels on its own stream, copies on streams of theirs, in the order that
:mod:`tensorstash.engine.transfers` argues for. Workers begin where a copy has ended, with the codecs of the host and
stores that look at the bytes; a payload that just stays in host memory needs none.
"""

from collections.abc import Sequence
from typing import Any

from tensorstash.abilities import Stream
from tensorstash.engine.content import Content
from tensorstash.engine.transfers import Copy, Flight, Part, Transfers
from tensorstash.errors import TensorStashError, is_out_of_memory
from tensorstash.host.arrays import as_bytes
from tensorstash.host.budget import Lease
from tensorstash.spec import TensorSpec


class StreamContent(Content):
    """A content that is captured in two steps: :meth:`launch` where it was saved, :meth:`capture` on a worker.

    Thread-safe. Its own attributes begin as those of the class: most are never set.
    """

    is_streamed = True

    _transfers: Transfers
    _stream: Stream
    _launched_nbytes = 0
    _near: Lease | None = None
    """Device memory that its group has taken, to stay."""
    _flight: Flight | None = None
    """The copy to the host; its memory is the payload itself where no worker has anything to do with it."""
    _arrival: Part | None = None
    """The copy back that somebody is to ask for."""
    _failure: TensorStashError | None = None
    """Of reading ahead, for the next who asks: later ones have it read again."""

    # Into the store

    @staticmethod
    def launch(contents: "Sequence[StreamContent]") -> None:
        """Launch kernels, and copies of one device that go together, in its current stream."""
        transfers, device = contents[0]._transfers, contents[0].spec.device
        compute = transfers.compute(device)
        going: list[StreamContent] = []
        copies: list[tuple[Any, Any, int]] = []
        for content in contents:
            transfers.saved.add(id(content))
            content._near, place, source = None, content.place, content.alias
            try:
                if place.is_plain and not content.is_private and content._stream == compute:
                    copy = source, source, content.nbytes
                else:
                    copy = content._dense(compute)
                content._launched_nbytes = copy[2]
                if place.is_at_hand:
                    content._keep(place.stored_here(copy[0]))
                    content.alias = None
                    continue
                if place.shares_source and not content.is_private and not content._is_alone:
                    content._probe = place.backend.version_probe(source)  # until it is copied, the bytes are its own
            except Exception as error:  # the tensor stays, and the others leave
                others = [other for other in contents if other is not content and other.alias is not None]
                copies, copy = [], (None, None, 0)  # others are copied again, and need the memory
                if others:
                    StreamContent.launch(others)
                if isinstance(error, TensorStashError) or is_out_of_memory(error):
                    raise
                raise content._unreadable(source, error) from error
            going.append(content)
            copies.append(copy)
        flights = transfers.out(copies, device, compute) if going else None
        if flights is None and len(going) > 1:  # one by one there may be host memory for some of them
            for content in going:
                StreamContent.launch([content])
        elif flights is None:
            for content in going:
                next(content.place.ledger.declined[content.nbytes])
        else:
            payloads: list[tuple[object, int, TensorSpec]] = []
            for content, flight in zip(going, flights, strict=True):
                content._flight = flight
                if not content.place.needs_worker:
                    payloads.append((content, content._launched_nbytes, content.spec))
                    if content.record is not None:
                        content.record.was_stored(0)
                content.alias = None
            if payloads:
                going[0].place.ledger.stored(going[0].place.tier, payloads)

    def _dense(self, compute: Any) -> tuple[Any, Any, int]:
        """Return a contiguous tensor to be transferred, what keeps its memory, and its bytes."""
        source, transfers, spec = self.alias, self._transfers, self.spec
        place: Any = self.place
        if compute != self._stream:  # which made it
            compute.wait_event(transfers.streams.recorded(self._stream))
            transfers.streams.use_in([source], compute)
        if self.is_private and place.shares_source and transfers.out_budget.limit:
            source = place.copy_here(source, spec)  # computation goes on beside the copy, and may change it
        launched = place.launch(source, spec) if place.runs_kernels else place.layouts.dense(source, spec)
        return launched, source if place.shares_source else launched, place.backend.nbytes(launched)

    @property
    def is_large(self) -> bool:
        return self.nbytes > self._transfers.back_budget.limit

    @staticmethod
    def stay(contents: "Sequence[StreamContent]", lease: Lease | None) -> None:
        """Let contents stay on the device, near the computation, in memory that a lease has taken; or no longer."""
        for content in contents:
            content._near = lease

    def capture(self) -> None:
        """Wait for the transfer, and encode and store its bytes; a failure is kept for later requests."""
        flight, place = self._flight, self.place
        if flight is None:  # there was no memory for it
            return
        try:
            with self._transfers.streams.on_device(self.spec.device):
                flight[0].wait()
            self._keep(place.store_transferred(flight[2]))
        except TensorStashError as error:
            self._fail(error)
        # Last: whoever finds no transfer takes the slot or the error.
        self._flight = None

    def _fail(self, error: TensorStashError) -> None:
        if self._flight is not None:
            self._flight[0].release()
        super()._fail(error)

    @property
    def source(self) -> Any:
        """The alias of the saved tensor before it is launched, and while its memory is held for the copy; else None."""
        source, flight = self.alias, self._flight
        if source is None and flight is not None and self.place.shares_source:
            source = flight[0].held.get(flight[1])
        if source is not None:
            self._check(self._probe if self.is_private else source)
            self._transfers.lent(source, self.spec.device)
        return source

    # Back

    def restore(self, spec: TensorSpec) -> Any:
        """Return a fresh tensor of the given layout, in the order of the current stream; the host waits for no copy."""
        place, transfers, device, flight = self.place, self._transfers, spec.device, self._flight
        if self._error is not None or self._probe is not None:
            self.raise_failure()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure.again()
        with self._lock:
            self._uses += 1
            is_last = self._uses % self.users == 0
            arrival, self._arrival = self._arrival, None
        here = None
        if place.is_at_hand:
            here = None if self.stored is None else self.stored.slot
        elif flight is not None and not place.shares_source:
            here = flight[0].held.get(flight[1])
        if here is not None:
            return place.assemble(transfers.used_here(here, device), spec, adopt=False)
        encoded = None if arrival is None else transfers.arrived(*arrival, device)
        if arrival is None or encoded is None:  # it is counted if there is room and others will ask
            near = None if is_last else transfers.near(self._launched_nbytes, is_group=False)
            arrival = transfers.back([self._copy()], near and near[0], is_prefetch=False), 0
            encoded = transfers.arrived(*arrival, device)
        is_shared = not is_last and arrival[0].lease is not None
        if is_shared:
            self._hold(arrival)
        else:
            arrival[0].take(arrival[1])
        adopt = not is_shared if place.relays is None else self.users == 1 or not place.may_write()
        if place.runs_kernels or place.layouts is None:
            return place.assemble(encoded, spec, adopt=adopt)
        return place.layouts.restored(encoded, spec, adopt=adopt)

    @property
    def bytes_to_bring(self) -> int | None:
        flight, loading = self._flight, self._loading
        if self.alias is not None:
            return None if self.is_large else 0  # a step has its peak beside it
        is_there = self.place.is_at_hand or (flight is not None and flight[1] in flight[0].held)
        if is_there or self._arrival is not None:
            return 0
        is_read = self.stored is None or not self.place.is_costly or (loading is not None and loading.done())
        return self._launched_nbytes if is_read and not (self._error or self._failure) else None

    @staticmethod
    def bring(group: "Sequence[StreamContent]", lease: Lease) -> None:
        """Start bringing contents back, in memory that a lease has taken; a failure is told to who asks next."""
        copies: list[Copy] = []
        coming: list[StreamContent] = []
        for content in group:
            try:
                copies.append(content._copy())
                coming.append(content)
            except TensorStashError as error:
                content._failure = error.again()
        if not coming:
            return
        try:
            arrival = coming[0]._transfers.back(copies, lease, is_prefetch=True)
        except (RuntimeError, MemoryError):  # the device is full; whoever asks is told, if it still is then
            return
        for number in list(arrival.held):
            coming[number]._hold((arrival, number))

    def _copy(self) -> Copy:
        """Return its bytes on the host for a copy back, also those that have not come there yet."""
        flight = self._flight
        place: Any = self.place
        spec = place.launched_spec(self._launched_nbytes) if place.runs_kernels else place.spec
        if self.stored is not None or flight is None:
            self.raise_failure()
            return as_bytes(self._load(may_hold=False)[0]), spec, None
        if not place.needs_worker:
            if self._error is not None or self._probe is not None:
                self.raise_failure()
            with place.ledger.lock:
                place.numbers[4] += 1  # as :meth:`Ledger.add` does, without its frame
        elif place.loses_on_host:
            flight[0].wait()
            return as_bytes(place.as_stored(flight[2])), spec, None
        return flight[2], spec, flight[0]._end or flight[0].end

    def _hold(self, arrival: Part) -> None:
        with self._lock:
            other, self._arrival = self._arrival, arrival
        if other is not None:
            other[0].dismiss(other[1])

    def __del__(self) -> None:
        if not hasattr(self, "_transfers"):  # an interrupt came before it was made
            return
        saved = self._transfers.saved
        saved.discard(id(self))
        if not saved or self._arrival is not None:
            self._transfers.leave(self._arrival)
