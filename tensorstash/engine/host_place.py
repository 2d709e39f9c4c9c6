"""The place in host memory or on a disk: codecs on arrays, and a store behind them.

On a device with streams payloads are transferred to the host beside the computation, and back ahead of it.
"""

import errno
from collections.abc import Callable
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from tensorstash.engine.place import Place, Stored
from tensorstash.engine.shared_span import SharedSpan
from tensorstash.engine.stages import Stages
from tensorstash.engine.transfer import Transfer
from tensorstash.errors import CorruptDataError, StashError, StoreError
from tensorstash.host.arrays import Array, adopted, as_bytes, borrowed, copied, is_private
from tensorstash.host.checksum import checksum
from tensorstash.protocols import Store, StoreConfig
from tensorstash.spec import TensorSpec

D = TypeVar("D", Array, Stored)
R = TypeVar("R")

_PASSING = frozenset({errno.EINTR, errno.EAGAIN, errno.EIO})
_MORE_ATTEMPTS = 2

_SHORT_BYTES = 8 * 2**20
"""Up to here a quick codec takes about as long as to hand the work to a thread."""


class HostPlace(Place):
    """Payloads that are encoded and stored on the host, on any thread, perhaps once they are transferred.

    Args:
        stages: codecs that run on the host.
        config: opens ``store``.
        store: the live store.
        others: of :class:`~tensorstash.engine.place.Place`.
    """

    def __init__(self, stages: Stages, config: StoreConfig, store: Store, *others: Any) -> None:
        super().__init__(*others)
        self.stages, self.store, self.tier = stages, store, config.tier
        self._has_stages = bool(stages)
        self.numbers = self.ledger.tier(config.tier)
        self._trusts_store = getattr(store, "verifies", False)
        self._declines = bool(stages) and stages.may_pass_on and store.retains
        self.is_costly = bool(stages) or self.tier != "memory"
        self.may_hang = self.tier != "memory"
        codecs = self.plan.codecs[len(self.kernels) :]
        are_quick = bool(codecs) and all(getattr(codec, "is_quick", False) for codec in codecs)
        self.may_be_now = are_quick and self.tier == "memory" and self.transfers is None
        self.is_now = self.may_be_now and self.spec.nbytes <= _SHORT_BYTES
        self.shared_memory = self.relays if not self.kernels and self.spec.device == "cpu" else None
        if self.transfers is not None:
            self.shares_source = not self.kernels and self.saved.order.is_dense
            # Else nothing needs the bytes themselves, and not just the memory that they arrive in.
            self.needs_worker = bool(stages) or not getattr(store, "takes_pending", False)
        self.loses_on_host = not all(codec.lossless for codec in codecs)
        """Whether a codec that runs after the transfer loses something."""

    def private_source(self, tensor: Any, spec: TensorSpec) -> tuple[Any, int | None]:
        """Return the elements in host memory where the program waits for a copy from a device, else a private copy.

        Where it does not wait, the tensor itself: a launched copy is private, or a copy is made then, if it has to be.
        """
        if self.transfers is not None:
            return self.backend.detached(tensor), None
        if self.runs_kernels or spec.device == "cpu":
            return super().private_source(tensor, spec)
        data = self.backend.to_host(tensor, spec)
        return data, checksum(as_bytes(data))

    def copy(self, source: Any, spec: TensorSpec, wanted: TensorSpec) -> Any:
        """Return a copy of a tensor, or of its elements; see :meth:`Place.copy`."""
        if not isinstance(source, np.ndarray):
            return super().copy(source, spec, wanted)
        return self.backend.from_host(borrowed(source).reshape(wanted.dense().shape), wanted)

    def capture(self, source: Any, spec: TensorSpec, *, private: bool = False) -> Stored | None:
        """Run the codecs on a tensor, or its elements, and store the result; see :meth:`Place.capture`."""
        if self.runs_kernels:
            source = self.launch(source, spec)
            spec, is_mine = self.backend.spec(source), True  # on the CPU it is the payload's own memory
        else:
            # With codecs it is still borrowed: bytes that they pass on stay in their tensor.
            is_mine = private and not self.plan.codecs
        data = source if isinstance(source, np.ndarray) else self.backend.to_host(source, spec)
        if is_mine:
            data = adopted(data)
        elif self.plan.codecs:  # also a copy of a tensor that is not dense: the same bytes in there would save nothing
            data = borrowed(data)
        return self.store_array(data)

    def store_array(self, data: Array) -> Stored | None:
        """Run the codecs on elements in memory order and store the result; see :meth:`Place.capture`."""
        if self._has_stages:
            data = self.stages.encode(data)
        payload = as_bytes(data)
        if self._declines and not is_private(payload):
            return None
        return self._answer(self._put, payload)

    def stored_at_once(self, flight: Transfer) -> Stored:
        """Return a stored payload whose bytes may still be arriving."""
        array, started = flight.array, perf_counter()
        try:
            slot = self.store.put(array)
        except StashError as error:
            raise error.at(self.label) from error
        return Stored(self.store, slot, array.nbytes, None, perf_counter() - started)

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
        """Return the elements again, in memory order; see :meth:`Place.load`."""
        started = perf_counter()
        data = self._answer(self._get, stored)
        result = self.stages.result
        if result.shape != (-1,):
            data = data.view(result.carrier).reshape(result.shape)
        self.ledger.add(self.numbers, 0, 0, 0, 0.0, 1, perf_counter() - started)
        if self._has_stages:
            data = self.stages.decode(data)
        # A device reads some memory on its own, if there is any left.
        staged = self.transfers is not None and self.needs_worker
        return self.transfers.staged(data, self.spec.device) if staged else data  # type: ignore[union-attr]

    def rebuild(self, data: Any, spec: TensorSpec, span: SharedSpan | None = None) -> Any:
        """Return a fresh tensor; see :meth:`Place.rebuild`."""
        if span is not None:
            return span.rebuild(data, spec)
        if not self.runs_kernels:
            return self.backend.from_host(data.reshape(spec.order.shape), spec)
        kernels = self.backend.kernels
        assert kernels is not None, "a backend without kernels"
        return self.assemble(kernels.payload(data, self.launched_spec(data.nbytes)), spec, adopt=True)

    def _put(self, payload: Array) -> Stored:
        """Put bytes into the store on this thread, however long it takes."""
        started = perf_counter()
        if self.store.retains and not is_private(payload):
            payload = copied(payload)
        digest = None if self._trusts_store else checksum(payload)
        slot = self.store.put(payload)
        return Stored(self.store, slot, payload.nbytes, digest, perf_counter() - started)

    def _get(self, stored: Stored) -> Array:
        data: object = self.store.get(stored.slot)
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != (stored.nbytes,):
            got = f"{data.dtype.name}{data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
            raise CorruptDataError(f"the store gave back {got}, expected uint8({stored.nbytes},)")
        if stored.digest is not None and checksum(data) != stored.digest:
            raise CorruptDataError(f"{stored.nbytes} bytes came back altered")
        return data

    def _answer(self, question: Callable[[D], R], given: D) -> R:
        """Return the answer of the store, which is asked again after an error that may pass; others are named."""
        attempts = _MORE_ATTEMPTS
        while True:
            try:
                return question(given)
            except Exception as error:
                if attempts and _may_pass(error):
                    attempts -= 1
                    continue
                if isinstance(error, StashError):
                    raise error.at(self.label) from error
                raise StoreError(f"{self.label}: {type(error).__name__}: {error}") from error


def _may_pass(error: BaseException) -> bool:
    # In a frame of its own, which no error refers to.
    cause = error if isinstance(error, OSError) else error.__cause__ if isinstance(error, StoreError) else None
    return isinstance(cause, OSError) and cause.errno in _PASSING
