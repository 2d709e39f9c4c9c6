"""A saved tensor on a device with streams: captured beside the computation, and brought back ahead of it.

What the program's thread does is only launched: kernels on the program's own stream, copies on streams of their own, in
the order that :mod:`tensorstash.engine.transfers` argues for. Workers begin where a copy has ended, with the codecs of
the host and stores that look at the bytes; a payload that just stays in host memory needs none.
"""

from operator import call
from typing import Any

from tensorstash.abilities import Event
from tensorstash.engine.budget import ByteBudget
from tensorstash.engine.payloads.capture import Capture
from tensorstash.engine.payloads.payload import Payload
from tensorstash.engine.payloads.route import PayloadRoute
from tensorstash.engine.stats import Ledger
from tensorstash.engine.timeouts import Ask, Timeouts
from tensorstash.engine.transfers import Transfer, Transfers
from tensorstash.errors import TensorStashError
from tensorstash.host.arrays import Array, as_bytes
from tensorstash.protocols import Backend
from tensorstash.spec import TensorSpec


class StreamedCapture(Capture):
    """Captures a saved tensor in two steps: :meth:`launch` where it was saved, :meth:`run` on a worker.

    Args:
        route: how the bytes are encoded, and where they go.
        backend: the framework's adapter.
        source: an alias of the saved tensor, part of no graph.
        spec: the source's spec.
        version: the source's in-place version when it was saved.
        ledger: where payloads are counted.
        transfers: of the session.
        version_probe: of the saved tensor, if ``source`` is a private copy.
    """

    __slots__ = ("_flight", "_stream", "transferred_nbytes", "transfers")

    def __init__(
        self,
        route: PayloadRoute[Any],
        backend: Backend[Any],
        source: Any,
        spec: TensorSpec,
        version: int,
        ledger: Ledger,
        transfers: Transfers[Any],
        version_probe: Any = None,
    ) -> None:
        super().__init__(route, backend, source, spec, version, ledger, version_probe)
        self.transfers = transfers
        self._stream = transfers.compute(spec.device)
        self.transferred_nbytes = 0
        self._flight: Transfer[Any] | None = None

    @property
    def needs_worker(self) -> bool:
        """Whether there is work for the host behind the copy."""
        return self.route.works_on_host

    def launch(self) -> None:
        """Launch the kernels and the copy, in the current stream, after what has been given to the one that saved it.

        Raises:
            StashError: the tensor cannot be read, a kernel failed, or the store has no room.
        """
        source = self._source
        try:
            self._launch(source)
        except TensorStashError as error:
            self._fail(error)
            raise
        except Exception as error:
            unreadable = self._unreadable(source, error)
            self._fail(unreadable)
            raise unreadable from error
        self._source = None

    def _launch(self, source: Any) -> None:
        route = self.route
        self.transfers.follow(self._stream, source, self.spec.device)
        encoded = route.launch(source, self.spec)
        self.transferred_nbytes = self.backend.nbytes(encoded)
        if route.is_on_device:
            self._keep(route.resident(encoded))
            return
        if route.shares_source and not self.is_private:
            # Until it is copied, the bytes are the tensor's own.
            self._version_probe = self.backend.version_probe(source)
        held = source if route.shares_source else encoded
        self._flight = self.transfers.out(encoded, held, route.transferred_spec(self.transferred_nbytes))
        if not route.works_on_host:
            self._store(self._flight.array)

    def run(self, ask: Ask = call) -> None:
        """Wait for the copy, and encode and store what it has brought; a failure is kept for whoever asks.

        Args:
            ask: how a store is asked that may not answer.
        """
        flight = self._flight
        assert flight is not None, "nothing was launched"
        try:
            self._store(flight.wait(), ask)
        except TensorStashError as error:
            self._fail(error)
        # Last: whoever finds no copy takes the slot or the error.
        self._flight = None

    def _store(self, array: Array, ask: Ask = call) -> None:
        stored = self.route.store(array, ask)
        assert stored is not None, "memory that was handed over is never declined"
        self._keep(stored)

    def _fail(self, error: TensorStashError) -> None:
        self._error = error.again()
        if self._flight is not None:
            self._flight.release()

    @property
    def source(self) -> Any:
        """The alias of the saved tensor before it is launched, and while its memory is held for the copy; else None.

        Raises:
            SavedTensorModifiedError: it was modified in place since it was saved.
        """
        source = self._source
        if source is None and self.route.shares_source:
            source = self.on_device
        if source is not None:
            self.check(self._version_probe if self.is_private else source)
        return source

    @property
    def on_device(self) -> Any:
        """What crosses to the host, or stays, while it is still on the device; else None."""
        if self.route.is_on_device:
            return None if self._stored is None else self._stored.slot
        flight = self._flight
        return None if flight is None else flight.held

    @property
    def has_left(self) -> bool:
        """Whether there is nothing of it on its device any more."""
        return self._source is None and self.on_device is None

    @property
    def is_at_hand(self) -> bool:
        """Whether the bytes that were transferred lie in host memory, or soon will, so that nobody need read them."""
        return self._error is None and (self._stored is None or not self.route.is_costly)

    def bytes_on_host(self, ask: Ask) -> tuple[Array, Event | None]:
        """Return the bytes that were transferred, and the end of the copy that brings them if it may not have come yet.

        Args:
            ask: how a store is asked that may not answer.

        Raises:
            StashError: they could not be captured, loaded or decoded.
        """
        flight = self._flight
        if self._stored is None and flight is not None:
            return flight.array, flight.end
        self.raise_failure()
        return as_bytes(self.decode(ask)), None if flight is None else flight.end

    def decode(self, ask: Ask = call) -> Array:
        """Return what was transferred, in memory that a device reads on its own if there is any left.

        Args:
            ask: how a store is asked that may not answer.

        Raises:
            StashError: the bytes could not be loaded or decoded.
        """
        data: Array = super().decode(ask)
        return self.transfers.staged(data) if self.route.works_on_host else data

    def __del__(self) -> None:
        if self._flight is not None:
            self._flight.release()


class StreamedPayload(Payload):
    """A payload that is brought back to its device, ahead of time where the budget allows. Thread-safe.

    Args:
        capture: where the bytes come from.
        prefetch_budget: bytes that all payloads together may hold decoded on the host.
        timeouts: how long to wait for what is read.
    """

    __slots__ = ("_arrival", "_failure")

    capture: StreamedCapture
    is_streamed = True

    def __init__(self, capture: StreamedCapture, prefetch_budget: ByteBudget, timeouts: Timeouts) -> None:
        super().__init__(capture, prefetch_budget, timeouts)
        self._arrival: Transfer[Any] | None = None
        self._failure: TensorStashError | None = None  # of bringing it ahead

    def restore(self, spec: TensorSpec) -> Any:
        """Return a fresh tensor of the given layout, in the order of the current stream; the host waits for no copy.

        Raises:
            SavedTensorModifiedError: the source was modified in place, perhaps before its bytes were captured.
            StashError: the bytes could not be captured, loaded or decoded, or a load did not end in time.
        """
        capture, device = self.capture, spec.device
        route, transfers = capture.route, capture.transfers
        capture.raise_failure()
        with self._lock:
            self._uses += 1
            is_last = self._uses % self.users == 0
            arrival, self._arrival = self._arrival, None
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure.again()  # as it is, it would refer to this frame, and this frame to it
        here = None if route.shares_source else capture.on_device
        if here is not None:
            return route.assemble(transfers.used_here(here, device), spec, adopt=False)
        encoded = None if arrival is None else transfers.arrived(arrival, device)
        if arrival is None or encoded is None:
            arrival = (None if is_last else self._bring(is_prefetch=True)) or self._bring(is_prefetch=False)
            assert arrival is not None, "what is asked for needs no budget"
            encoded = transfers.arrived(arrival, device)
        is_shared = not is_last and arrival.is_counted
        if is_shared:
            self._keep(arrival)
        else:
            arrival.drop()
        return route.assemble(encoded, spec, adopt=not is_shared)

    def prefetch_to_device(self) -> bool:
        """Start bringing it back, if it is not on its device; return False to look no further ahead for now."""
        capture = self.capture
        if self._arrival is not None or self._failure is not None or not capture.has_left:
            return True
        if not capture.is_at_hand and not self._is_read:
            return False
        try:
            arrival = self._bring(is_prefetch=True)
        except TensorStashError as error:
            self._failure = error.again()
            return True
        except (RuntimeError, MemoryError):  # the device is full; whoever asks is told, if it still is then
            return False
        if arrival is None:
            return False
        self._keep(arrival)
        return True

    @property
    def _is_read(self) -> bool:
        loading = self._loading
        return loading is not None and loading.done()

    def _bring(self, *, is_prefetch: bool) -> Transfer[Any] | None:
        capture = self.capture
        spec = capture.route.transferred_spec(capture.transferred_nbytes)
        if is_prefetch and not capture.transfers.has_room(spec.nbytes):
            return None
        data, end = capture.bytes_on_host(self._timeouts.ask) if capture.is_at_hand else (as_bytes(self.load()), None)
        return capture.transfers.back(data, spec, end, is_prefetch=is_prefetch)

    def _hand_out(self, data: Any) -> Any:
        self._release()
        return data

    def _keep(self, arrival: Transfer[Any]) -> None:
        with self._lock:
            other, self._arrival = self._arrival, arrival
        if other is not None:
            other.release()

    def __del__(self) -> None:
        if self._arrival is not None:
            self._arrival.release()
