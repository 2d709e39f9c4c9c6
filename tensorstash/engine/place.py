"""The place of a content that is not resident, and its way there and back.

Kernels run where the tensor is while each codec has one; then the payload is transferred to the host, once and never
back, and the other codecs and the store work on it there.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, TypeVar, cast

import numpy as np

from tensorstash.abilities import Backend, Layouts, SupportsGraph, SupportsSharedMemory
from tensorstash.engine.ledger import Ledger
from tensorstash.engine.shared_span import SharedSpan
from tensorstash.engine.stages import Stages
from tensorstash.engine.transfers import Transfers
from tensorstash.errors import CorruptDataError, StashError, StoreError
from tensorstash.host.arrays import Array, adopted, as_bytes, borrowed, copied, is_private
from tensorstash.host.checksum import checksum
from tensorstash.policies.plan import Plan
from tensorstash.protocols import Slot, Store
from tensorstash.spec import TensorSpec, contiguous_strides
from tensorstash.stores.memory import Memory

D = TypeVar("D")
R = TypeVar("R")

_SHORT_BYTES = 8 * 2**20  # up to here a quick codec takes about as long as to hand the work to a thread


@dataclass(eq=False, slots=True, weakref_slot=True)
class Stored:
    """A payload in its place; owns the slot, which is free when this is dropped.

    A payload that stays on its device has no store and is the slot itself. A store that verifies needs no ``digest``.
    """

    store: Store | None
    slot: Slot
    nbytes: int
    digest: int | None = None
    seconds: float = 0.0

    def __del__(self) -> None:
        if self.store is not None:
            self.store.delete(self.slot)


class Place:
    """Captures saved tensors of one spec, loads their bytes and rebuilds them. Thread-safe, holds no payload.

    Payloads are encoded and stored on the host, on any thread. On a device with streams they are transferred there
    beside the computation, and back ahead of it; where kernels run all codecs and no store is named, they stay there.
    ``number`` is the same for all places of a session that have the same plan.
    """

    def __init__(
        self,
        plan: Plan,
        spec: TensorSpec,
        backend: Backend[Any],
        store: Store,
        ledger: Ledger,
        transfers: Transfers | None = None,
        number: int = 0,
    ) -> None:
        self.plan, self.backend, self.ledger, self.number, self.store = plan, backend, ledger, number, store
        self.saved, self.spec = spec, spec.dense()
        """Of the tensors, as their policy was asked about them, and of their elements."""
        config = plan.store or Memory()
        parts: tuple[Any, ...] = (*plan.codecs, config)
        labels = [f"stage {i} of {len(parts)} ({part!r}), tensor {spec}" for i, part in enumerate(parts, start=1)]
        self.label = labels[-1]
        self.kernels = kernels = Stages(plan.codecs, self.spec, labels[:-1], ledger, backend)
        codecs = plan.codecs[len(kernels) :]
        self.stages = stages = Stages(codecs, kernels.result, labels[len(kernels) : -1], ledger)
        self.is_at_hand = plan.store is None and bool(kernels) and not codecs and spec.device != "cpu"
        """Whether the payload stays on its device, so that nothing loaded is worth holding."""
        self.tier = "device" if self.is_at_hand else config.tier
        has_streams = transfers is not None and transfers.compute(spec.device) is not None
        self.transfers = transfers if has_streams else None
        if not self.is_at_hand:
            self.numbers = ledger.tier(config.tier)
        self.is_lossless, self.runs_kernels, self._has_stages = plan.is_lossless, bool(kernels), bool(stages)
        self._trusts_store = getattr(store, "verifies", False)
        result = stages.result
        may_pass_on = result.shape == (-1,) or result.nbytes == kernels.result.nbytes  # its length need not change
        self._declines = bool(stages) and may_pass_on and store.retains
        self.is_costly = not self.is_at_hand and (bool(stages) or self.tier != "memory")
        """Whether it takes longer to load than a copy does."""
        self.may_hang = self.tier not in ("memory", "device")
        """Whether its store may never answer, so that only threads that can be given up call it."""
        are_quick = bool(codecs) and all(getattr(codec, "is_quick", False) for codec in codecs)
        self.may_be_now = are_quick and self.tier == "memory" and not has_streams
        """Whether its codecs are quick and the payload stays in host memory, so that they may run in the hooks."""
        self.is_now = self.may_be_now and self.spec.nbytes <= _SHORT_BYTES  # as a small tensor's always do
        # With streams the memory that bytes arrive in is the payload where nothing limits it and no codec needs them.
        self.needs_worker = not (has_streams and (self.is_at_hand or (not stages and config == Memory())))
        """Whether there is work behind the launch, or all of it."""
        self.shares_source = has_streams and not kernels and spec.order.is_dense
        """Whether the tensor's own memory is transferred."""
        is_bare = spec.strides == contiguous_strides(spec.shape) and not spec.conj and not spec.neg
        self.is_plain = self.shares_source and is_bare
        """Whether it is transferred as it is."""
        self.loses_on_host = not all(codec.lossless for codec in codecs)
        """Whether a codec that runs after the transfer loses something."""
        is_shared = not backend.backward_writes and isinstance(backend, SupportsSharedMemory)
        self.relays = cast(SupportsSharedMemory[Any], backend) if is_shared else None
        """Gives all readers one memory, where backward does not write into it."""
        self.shared_memory = self.relays if not kernels and spec.device == "cpu" else None
        """Puts rebuilt tensors into one memory, where they are on the host and backward does not write."""
        self.layouts: Layouts[Any] | None = backend.layouts
        self.may_write = backend.may_write if isinstance(backend, SupportsGraph) else bool
        self._twin: Place | None = None

    def capture(self, source: Any, spec: TensorSpec, *, private: bool = False) -> Stored | None:
        """Run the codecs on a tensor of ``spec``, or its elements, and store the result.

        None if the codecs have passed on borrowed memory as it is, which stays there. The memory of a ``private``
        source, which nobody else has, may become the payload.
        """
        if self.runs_kernels:
            source = self.launch(source, spec)
            if self.is_at_hand:
                return self.stored_here(source)
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
        """Run the codecs on elements in memory order and store the result."""
        if self._has_stages:
            data = self.stages.encode(data)
        payload = as_bytes(data)
        if self._declines and not is_private(payload):
            return None
        return self._answer(self._put, payload)

    def stored_here(self, launched: Any) -> Stored:
        """Return a payload that stays on its device, and is its own slot."""
        return Stored(None, launched, self.backend.nbytes(launched))

    def store_transferred(self, array: Array) -> Stored:
        """Run the codecs of the host on a result of :meth:`launch`, which is this place's now; see :meth:`capture`."""
        spec = self.launched_spec(array.nbytes)
        stored = self.store_array(array.view(spec.carrier).reshape(spec.shape))
        assert stored is not None, "memory that was handed over is never declined"
        return stored

    def as_stored(self, transferred: Array) -> Array:
        """Return the later result for bytes that were transferred and are not stored yet; see :meth:`round_trip`."""
        twin, launched = self.twin, self.launched_spec(transferred.nbytes)
        stored = twin.store_array(borrowed(transferred.view(launched.carrier).reshape(launched.shape)))
        return transferred if stored is None else twin.load(stored)

    def load(self, stored: Stored) -> Any:
        """Return the input of :meth:`rebuild`: an array, or the payload itself if it has stayed on its device."""
        if self.is_at_hand:
            return stored.slot
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
        """Return a fresh, detached tensor in private writable memory, which may be that of writable ``data``."""
        if span is not None:
            return span.rebuild(data, spec)
        if not self.runs_kernels:
            return self.backend.from_host(data.reshape(spec.order.shape), spec)
        if self.is_at_hand:
            return self.assemble(data, spec, adopt=False)
        kernels = self.backend.kernels
        assert kernels is not None, "a backend without kernels"
        return self.assemble(kernels.payload(data, self.launched_spec(data.nbytes)), spec, adopt=True)

    def private_source(self, tensor: Any, spec: TensorSpec) -> tuple[Any, int | None]:
        """Return a private copy of a tensor, and a checksum of its content unless that is on a device with streams.

        Where it is transferred, the tensor itself: a launched copy is private, or a copy is made then, if it has to be.
        Where the program waits for a copy from a device, the elements in host memory.
        """
        if self.transfers is not None:
            return (self.copy_here(tensor, spec) if self.is_at_hand else self.backend.detached(tensor)), None
        if self.runs_kernels or spec.device == "cpu":
            source = self.copy(tensor, spec, spec)
            return source, checksum(as_bytes(self.backend.to_host(source, spec)))
        data = self.backend.to_host(tensor, spec)
        return data, checksum(as_bytes(data))

    def copy_here(self, tensor: Any, spec: TensorSpec) -> Any:
        """Return a copy of a tensor on a device with streams, in the order of the current one."""
        assert self.transfers is not None, "a device without streams"
        return self.copy(self.transfers.used_here(tensor, spec.device), spec, spec)

    def launch(self, source: Any, spec: TensorSpec) -> Any:
        """Return the dense elements, or the last kernel's payload, where the tensor is."""
        assert self.layouts is not None, "a backend without layouts"
        dense = self.layouts.dense(source, spec)
        return self.kernels.encode(dense) if self.runs_kernels else dense

    def assemble(self, launched: Any, spec: TensorSpec, *, adopt: bool) -> Any:
        """Return a fresh, detached tensor of ``spec`` for a result of :meth:`launch`, whose memory it may ``adopt``."""
        assert self.layouts is not None, "a backend without layouts"
        dense = self.kernels.decode(launched) if self.runs_kernels else launched
        return self.layouts.restored(dense, spec, adopt=adopt or self.runs_kernels)

    def round_trip(self, source: Any, spec: TensorSpec, wanted: TensorSpec) -> Any:
        """Return the later result for a tensor of ``spec`` that is not stored yet, with the layout of ``wanted``.

        Where a codec loses something, that is not a copy: whether a tensor was asked for before or after its bytes
        had left must not decide which gradients a program computes.
        """
        stored = self.twin.capture(source, spec)
        return self.copy(source, spec, wanted) if stored is None else self.twin.rebuild(self.twin.load(stored), wanted)

    @property
    def twin(self) -> "Place":
        """The same place with a store in memory, where nothing is counted."""
        if self._twin is None:
            plan = self.plan if self.plan.store is None else replace(self.plan, store=Memory())
            self._twin = Place(plan, self.saved, self.backend, Memory().open(), Ledger())
        return self._twin

    def forward(self, source: Any, spec: TensorSpec, wanted: TensorSpec, *, may_give: bool) -> Any:
        """Return a tensor of ``wanted`` for a reader of a source that has not left: itself, its memory, or a copy."""
        if spec == wanted and (may_give or (self.relays is not None and not self.may_write())):
            return source
        return self.relaid(source, spec, wanted)

    def copy(self, source: Any, spec: TensorSpec, wanted: TensorSpec) -> Any:
        """Return a copy of a tensor of ``spec``, or its elements, in private memory with the layout of ``wanted``."""
        is_array = isinstance(source, np.ndarray)
        if self.layouts is not None and not is_array:
            return self.layouts.restored(self.layouts.dense(source, spec), wanted, adopt=False)
        data = borrowed(source if is_array else self.backend.to_host(source, spec))
        return self.backend.from_host(data.reshape(wanted.dense().shape), wanted)

    def relaid(self, tensor: Any, spec: TensorSpec, wanted: TensorSpec) -> Any:
        """Return a tensor of ``wanted`` in the memory of one of ``spec`` if the operation only reads, else a copy."""
        if not (self.backend.backward_writes or self.may_write()):
            if spec == wanted:
                return self.backend.detached(tensor)
            if self.relays is not None and (spec.conj, spec.neg) == (wanted.conj, wanted.neg):
                return self.relays.relaid(tensor, spec, wanted)
        return self.copy(tensor, spec, wanted)

    def launched_spec(self, nbytes: int) -> TensorSpec:
        """Return the spec of the result of :meth:`launch` that has so many bytes."""
        spec = self.kernels.result
        return spec if spec.shape != (-1,) else TensorSpec((nbytes,), (1,), 0, spec.dtype, spec.device)

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
        """Return the answer of the store, whose errors name this place."""
        try:
            return question(given)
        except StashError as error:
            raise error.at(self.label) from error
        except Exception as error:
            raise StoreError(f"{self.label}: {type(error).__name__}: {error}") from error
