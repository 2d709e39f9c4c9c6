"""A saved tensor on a device with streams: captured beside the computation, and brought back ahead of it.

The program's thread only launches: kernels on the program's own stream, copies on streams of their own, in
the order that :mod:`tensorstash.engine.transfers` argues for. Workers begin where a copy has ended, with the codecs of
the host and stores that look at the bytes; a payload that just stays in host memory needs none.
"""

from typing import Any

from tensorstash.abilities import Event
from tensorstash.engine.content import Content, State
from tensorstash.engine.transfer import Transfer
from tensorstash.engine.transfers import Transfers
from tensorstash.errors import TensorStashError, is_out_of_memory
from tensorstash.host.arrays import Array, as_bytes
from tensorstash.host.budget import Lease
from tensorstash.spec import TensorSpec


class StreamContent(Content):
    """A content that is captured in two steps: :meth:`launch` where it was saved, :meth:`capture` on a worker.

    It is brought back to its device ahead of time where the budget allows. Thread-safe.

    Args:
        transfers: of the session.
        others: of :class:`~tensorstash.engine.content.Content`.
    """

    __slots__ = ("_arrival", "_failure", "_flight", "_launched_nbytes", "_near", "_stream", "_transfers")

    is_streamed = True

    def __init__(self, transfers: Transfers, *others: Any) -> None:
        super().__init__(*others)
        self._transfers, self.is_quick = transfers, False
        self._stream = transfers.compute(self.spec.device)
        self._launched_nbytes = 0
        self._near: Lease | None = None
        self._flight: Transfer | None = None
        self._arrival: Transfer | None = None
        self._failure: TensorStashError | None = None  # of bringing it ahead

    # Into the store

    def launch(self) -> None:
        """Launch the kernels and the transfer, in the current stream, after the work of the stream that saved it.

        Raises:
            StashError: the tensor cannot be read, a kernel failed, or the store has no room.
        """
        source, transfers, spec = self.alias, self._transfers, self.spec
        place: Any = self.place
        try:
            transfers.saved.add(id(self))
            compute = transfers.compute(spec.device)
            if compute != self._stream:
                transfers.follow(self._stream, compute, source)
            shares = place.shares_source
            is_lent = self.is_private and shares
            if is_lent and transfers.out_budget.limit:  # computation goes on beside the copy, and may change it
                source, is_lent = place.copy_here(source, spec), False
            launched = place.launch(source, spec) if place.runs_kernels else place.layouts.dense(source, spec)
            self._launched_nbytes = place.backend.nbytes(launched)
            if place.is_at_hand:
                self.state = self._keep(place.stored_here(launched))
            else:
                if shares and not self.is_private and not self._is_alone:
                    # Until it is copied, the bytes are the tensor's own.
                    self._probe = place.backend.version_probe(source)
                made = place.launched_spec(self._launched_nbytes) if place.runs_kernels else place.spec
                self._flight = flight = transfers.out(launched, source if shares else launched, made, compute)
                if flight is None:
                    next(place.ledger.declined[self.nbytes])
                    self.state = State.RESIDENT
                    return
                if is_lent:
                    flight.release()
                self.state = State.CAPTURING if place.needs_worker else self._keep(place.stored_at_once(flight))
        except TensorStashError as error:
            self.state = self._fail(error)
            raise
        except Exception as error:
            unreadable = self._unreadable(source, error)
            self.state = self._fail(unreadable)
            if is_out_of_memory(error):
                raise
            raise unreadable from error
        self.alias = None

    def stay(self, oldest: Any) -> bool:
        """Stay on the device, near the computation, in place of another or None; return False if there is no room."""
        near = None if oldest is None else oldest.leave()
        if near is not None and (oldest.nbytes != self.nbytes or self._transfers.was_full):
            near.release()
            near = None
        budget = self._transfers.back_budget
        if near is None and (budget.gone or budget.taken + self.nbytes <= budget.limit or self.nbytes > budget.limit):
            near = self._transfers.near(self.nbytes)
        self._near = near
        return near is not None

    def leave(self) -> Lease | None:
        """Stay no longer; return the bytes that it has taken."""
        near, self._near = self._near, None
        return near

    def capture(self) -> None:
        """Wait for the transfer, and encode and store its bytes; a failure is kept for later requests."""
        flight, place = self._flight, self.place
        if flight is None:  # there was no memory for it
            return
        try:
            with self._transfers.on_device(self.spec.device):
                array = flight.wait()
            self.state = self._keep(place.store_transferred(array))
        except TensorStashError as error:
            self.state = self._fail(error)
        # Last: whoever finds no transfer takes the slot or the error.
        self._flight = None

    def _fail(self, error: TensorStashError) -> State:
        if self._flight is not None:
            self._flight.release()
        return super()._fail(error)

    @property
    def source(self) -> Any:
        """The alias of the saved tensor before it is launched, and while its memory is held for the copy; else None.

        Raises:
            SavedTensorModifiedError: it was modified in place since it was saved.
        """
        source = self.alias
        if source is None and self.place.shares_source and self._flight is not None:
            source = self._flight.held
        if source is not None:
            self._check(self._probe if self.is_private else source)
            self._transfers.lent(source, self.spec.device)
        return source

    @property
    def _on_device(self) -> Any:
        """The launched transfer or the payload, while it is on the device; else None."""
        if self.place.is_at_hand:
            return None if self._stored is None else self._stored.slot
        return None if self._flight is None else self._flight.held

    # Back

    def restore(self, spec: TensorSpec) -> Any:
        """Return a fresh tensor of the given layout, in the order of the current stream; the host waits for no copy.

        Raises:
            SavedTensorModifiedError: the source was modified in place, perhaps before its bytes were captured.
            StashError: the bytes could not be captured, loaded or decoded, or a load did not end in time.
        """
        place, transfers, device = self.place, self._transfers, spec.device
        if self._error is not None or self._probe is not None:
            self.raise_failure()
        with self._lock:
            self._uses += 1
            is_last = self._uses % self.users == 0
            arrival, self._arrival = self._arrival, None
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure.again()  # as it is, it would refer to this frame, and this frame to it
        here = None if place.shares_source else self._on_device
        if here is not None:
            return place.assemble(transfers.used_here(here, device), spec, adopt=False)
        encoded = None if arrival is None else transfers.arrived(arrival, device)
        if arrival is None or encoded is None:
            arrival = (None if is_last else self._bring(is_prefetch=True)) or self._bring(is_prefetch=False)
            assert arrival is not None, "a requested content needs no budget"
            encoded = transfers.arrived(arrival, device)
        is_shared = not is_last and arrival.is_counted
        if is_shared:
            self._hold(arrival)
        else:
            arrival.drop()
        adopt = not is_shared if place.relays is None else self.users == 1 or not place.may_write()
        if place.runs_kernels or place.layouts is None:
            return place.assemble(encoded, spec, adopt=adopt)
        return place.layouts.restored(encoded, spec, adopt=adopt)

    def prefetch_to_device(self) -> bool:
        """Start bringing it back, if it is not on its device; return False to look no further ahead for now."""
        flight = self._flight
        if self.alias is not None or self._arrival is not None or self._failure is not None:
            return True
        if self.place.is_at_hand or (flight is not None and flight.held is not None):
            return True  # it is there
        if self._error is not None or (self._stored is not None and self.place.is_costly and not self._is_read):
            return False
        budget = self._transfers.back_budget
        if not budget.gone and budget.taken + min(self._launched_nbytes, budget.limit) > budget.limit:
            return False  # as nearly always in the end
        try:
            arrival = self._bring(is_prefetch=True)
        except TensorStashError as error:
            self._failure = error.again()
            return True
        except (RuntimeError, MemoryError):  # the device is full; whoever asks is told, if it still is then
            return False
        if arrival is None:
            return False
        self._hold(arrival)
        return True

    @property
    def _is_read(self) -> bool:
        loading = self._loading
        return loading is not None and loading.done()

    def _bring(self, *, is_prefetch: bool) -> Transfer | None:
        flight, transfers = self._flight, self._transfers
        place: Any = self.place
        spec = place.launched_spec(self._launched_nbytes) if place.runs_kernels else place.spec
        if flight is not None and self._stored is not None and not place.needs_worker:
            if self._error is not None or self._probe is not None:
                self.raise_failure()
            # The slot is the memory that they were transferred to.
            arrival = transfers.back(flight.array, spec, flight._end or flight.end, is_prefetch=is_prefetch)
            if arrival is not None:
                with place.ledger.lock:
                    place.numbers[4] += 1  # as :meth:`Ledger.add` does, without its frame
            return arrival
        if is_prefetch and not transfers.has_room(spec.nbytes):
            return None
        # The bytes that were transferred may lie in host memory, or soon will, so that nobody need read them.
        is_on_host = self._error is None and (self._stored is None or not place.is_costly)
        data, end = self._bytes_on_host() if is_on_host else (as_bytes(self._loaded()), None)
        return transfers.back(data, spec, end, is_prefetch=is_prefetch)

    def _loaded(self) -> Array:
        self.raise_failure()
        data: Array = self._load(may_hold=False)[0]
        return data

    def _bytes_on_host(self) -> tuple[Array, Event | None]:
        """Return the bytes that were transferred, and the end of the transfer if they may not have come yet.

        Raises:
            StashError: they could not be captured, loaded or decoded.
        """
        flight = self._flight
        place = self.place
        if self._stored is None and flight is not None:
            if place.loses_on_host:
                return as_bytes(place.as_stored(flight.wait())), None
            return flight.array, flight.end
        self.raise_failure()
        return as_bytes(self._decode()), None if flight is None else flight.end

    def _hold(self, arrival: Transfer) -> None:
        with self._lock:
            other, self._arrival = self._arrival, arrival
        if other is not None:
            other.release()

    def __del__(self) -> None:
        saved = self._transfers.saved
        saved.discard(id(self))
        if not saved or self._arrival is not None:
            self._transfers.leave(self._arrival)
