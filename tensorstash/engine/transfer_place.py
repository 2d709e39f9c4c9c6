"""The place on the host of a device with streams: transferred beside the computation, and back ahead of it."""

from time import perf_counter
from typing import Any

from tensorstash.engine.host_place import HostPlace
from tensorstash.engine.place import Stored
from tensorstash.engine.transfer import Transfer
from tensorstash.engine.transfers import Transfers
from tensorstash.errors import StashError
from tensorstash.host.arrays import Array, borrowed


class TransferPlace(HostPlace):
    """Payloads that are transferred to the host beside the computation, and back.

    Args:
        parts: of :class:`~tensorstash.engine.host_place.HostPlace`.
    """

    transfers: Transfers

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.shares_source = not self.kernels and self.saved.order.is_dense
        """Whether the tensor's own memory is transferred."""
        # Else nothing needs the bytes themselves, and not just the memory that they arrive in.
        self.needs_worker = bool(self.stages) or not getattr(self.store, "takes_pending", False)
        self.loses_on_host = not all(codec.lossless for codec in self.plan.codecs[len(self.kernels) :])
        """Whether a codec that runs after the transfer loses something."""

    def private_source(self, tensor: Any, spec: Any) -> tuple[Any, None]:
        """Return the tensor itself: a launched copy is private, or a copy is made then, if it has to be."""
        return self.backend.detached(tensor), None

    def stored_at_once(self, flight: Transfer) -> Stored:
        """Return a stored payload whose bytes may still be arriving."""
        array, started = flight.array, perf_counter()
        try:
            slot = self.store.put(array)
        except StashError as error:
            raise error.at(self.label) from error
        self.runs.count_in(array.nbytes, array.nbytes, perf_counter() - started)
        return Stored(self.store, slot, array.nbytes)

    def store_transferred(self, array: Array) -> Stored:
        """Run the codecs of the host and store the result.

        Args:
            array: bytes of a result of :meth:`launch`, which are this place's now.

        Raises:
            CodecError: a codec raised, or returned something its ``encoded_spec`` does not announce.
            StoreError: the store could not take the payload.
        """
        spec = self.launched_spec(array.nbytes)
        stored = self.store_array(array.view(spec.carrier).reshape(spec.shape))
        assert stored is not None, "memory that was handed over is never declined"
        return stored

    def as_stored(self, transferred: Array) -> Array:
        """Return the later result for bytes that were transferred and are not stored yet; see :meth:`round_trip`."""
        twin, launched = self.twin, self.launched_spec(transferred.nbytes)
        assert isinstance(twin, HostPlace), "a payload that stays on its device is not transferred"
        stored = twin.store_array(borrowed(transferred.view(launched.carrier).reshape(launched.shape)))
        return transferred if stored is None else twin.load(stored)

    def load(self, stored: Stored) -> Array:
        """Return the transferred elements, in memory that a device reads on its own if there is any left."""
        data = super().load(stored)
        return self.transfers.staged(data, self.spec.device) if self.needs_worker else data
