"""The way of one kind of tensor to its payload and back, chosen once, when the plan for it is made.

Kernels run where the tensor is while each codec has one; then the payload is transferred to the host, once and never
back, and the other codecs and the store work on it there. There are three routes: what is captured by a call on any
thread and stored on the host, what stays on its device, and what is transferred beside the computation.
"""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tensorstash.abilities import Backend, Layouts, Stream, SupportsSharedMemory, SupportsWriters
from tensorstash.engine.ledger import Ledger
from tensorstash.engine.payloads.interleaved import InterleavedPlace
from tensorstash.engine.payloads.pipeline import Pipeline, Stages, Stored
from tensorstash.engine.payloads.stages import device_stages, host_stages, stage_places
from tensorstash.engine.transfers import Transfer, Transfers
from tensorstash.host.arrays import Array, adopted, as_bytes, borrowed
from tensorstash.host.checksum import checksum
from tensorstash.policies.plan import Plan
from tensorstash.protocols import Store, StoreConfig
from tensorstash.spec import TensorSpec
from tensorstash.stores.memory import Memory

_SHORT_BYTES = 8 * 2**20
"""Up to here a quick codec takes about as long as to hand the work to a thread."""


class RouteParts(NamedTuple):
    """What every route is made of; as for :func:`route_for`, and the kernels that run where the tensor is."""

    plan: Plan
    spec: TensorSpec
    backend: Backend[Any]
    kernels: Stages
    ledger: Ledger
    store_place: str
    transfers: Transfers | None


class PayloadRoute(ABC):
    """Takes saved tensors of one spec to their payloads, and rebuilds them. Thread-safe, holds no payload."""

    tier: str
    number = 0
    """The same for all routes of a session that have the same plan."""
    may_hang = False
    """Whether its store may never answer, so that it is for threads that can be given up."""
    is_costly = False
    """Whether it takes longer to decode than a copy does."""
    may_be_now = is_now = False
    """Whether its codecs are quick and the payload stays in host memory, so that they may run in the hook that saves a
    tensor or asks for it; and whether they always do, as the tensor is small."""
    needs_worker = True
    """Whether there is work behind what is launched, or all of it."""
    is_at_hand = False
    """Whether each rebuilt tensor is made of the payload as it is, so that nothing decoded is worth holding."""
    shared_memory: SupportsSharedMemory[Any] | None = None
    """What puts rebuilt tensors into one memory, where they are on the host and backward does not write."""

    def __init__(self, parts: RouteParts) -> None:
        self.plan, spec, self.backend, self.kernels, self.ledger, self.store_place, self.transfers = parts
        self.saved = spec
        """Of the tensors, as their policy was asked about them."""
        self.spec = spec.dense()
        """Of their elements."""
        self.is_lossless, self.has_codecs = self.plan.is_lossless, bool(self.plan.codecs)
        self.runs_kernels = bool(self.kernels)
        self.kind = hash(self.spec)
        """Names what is saved, in the sequence of what a step saves."""
        self._layouts: Layouts[Any] | None = self.backend.layouts
        self.may_write = self.backend.may_write if isinstance(self.backend, SupportsWriters) else bool
        self._twin: PayloadRoute | None = None

    @abstractmethod
    def encode(self, source: Any, spec: TensorSpec, *, private: bool = False) -> Stored | None:
        """Run the codecs on a tensor of ``spec`` and store the result.

        Args:
            source: the tensor.
            spec: its spec.
            private: whether nobody else has the tensor, so that its memory may become the payload.

        Returns:
            Where the payload is; None if the codecs have passed on borrowed memory as it is, which stays there.

        Raises:
            CodecError: a codec or a kernel raised, or returned something its ``encoded_spec`` does not announce.
            StoreError: the store could not take the payload.
        """

    @abstractmethod
    def decode(self, stored: Stored) -> Any:
        """Return what :meth:`rebuild` needs: an array, or the payload itself where it has stayed on its device.

        Args:
            stored: what :meth:`encode` returned.

        Raises:
            CodecError: a codec raised, or returned something of another shape or dtype than went in.
            StoreError: the store could not give the payload back.
        """

    @abstractmethod
    def rebuild(self, data: Any, spec: TensorSpec, interleaved: InterleavedPlace | None = None) -> Any:
        """Return a fresh, detached tensor in private writable memory with the exact layout of ``spec``.

        Args:
            data: from :meth:`decode`; memory of a writable array may be adopted.
            spec: any layout of the same block of memory.
            interleaved: a place of its own in memory that is shared.

        Raises:
            CodecError: a kernel raised, or returned something of another shape or dtype than went in.
        """

    def private_source(self, tensor: Any, spec: TensorSpec) -> tuple[Any, int | None]:
        """Return a private copy of a tensor, and a checksum of its content unless that is on a device with streams."""
        if self.transfers is not None:
            return self.copy_here(tensor, spec), None
        source = self.copy(tensor, spec, spec)
        return source, checksum(as_bytes(self.backend.to_host(source, spec)))

    def copy_here(self, tensor: Any, spec: TensorSpec) -> Any:
        """Return a copy of a tensor on a device with streams, in the order of the current one."""
        assert self.transfers is not None, "a device without streams"
        return self.copy(self.transfers.used_here(tensor, spec.device), spec, spec)

    def launch(self, source: Any, spec: TensorSpec) -> Any:
        """Return the dense elements, or the last kernel's payload, where the tensor is.

        Raises:
            CodecError: a kernel raised, or returned something its codec's ``encoded_spec`` does not announce.
        """
        assert self._layouts is not None, "a backend without layouts"
        dense = self._layouts.dense(source, spec)
        return self.kernels.encode(dense) if self.runs_kernels else dense

    def assemble(self, launched: Any, spec: TensorSpec, *, adopt: bool) -> Any:
        """Return a fresh, detached tensor in private memory with the exact layout of ``spec``.

        Args:
            launched: as :meth:`launch` returned it.
            spec: any layout of the same block of memory.
            adopt: whether its memory may be used for the result.

        Raises:
            CodecError: a kernel raised, or returned something of another shape or dtype than went in.
        """
        assert self._layouts is not None, "a backend without layouts"
        dense = self.kernels.decode(launched) if self.runs_kernels else launched
        return self._layouts.restored(dense, spec, adopt=adopt or self.runs_kernels)

    def round_trip(self, source: Any, spec: TensorSpec, wanted: TensorSpec) -> Any:
        """Return what will come back of a tensor of ``spec`` that is not stored yet, with the layout of ``wanted``.

        Where a codec loses something, that is not a copy: whether a tensor was asked for before or after its bytes
        had left must not decide which gradients a program computes.

        Raises:
            CodecError: a codec or a kernel raised, or returned something its ``encoded_spec`` does not announce.
        """
        if self.is_lossless:
            return self.copy(source, spec, wanted)
        twin = self._in_memory(spec)
        stored = twin.encode(source, spec)
        return self.copy(source, spec, wanted) if stored is None else twin.rebuild(twin.decode(stored), wanted)

    def _in_memory(self, spec: TensorSpec) -> "PayloadRoute":
        """Return the same route with a store in memory, where nothing is counted."""
        if self._twin is None:
            here = Memory()
            plan = replace(self.plan, store=here if self.plan.store is not None else None)
            self._twin = route_for(plan, spec, self.backend, here, here.open(), Ledger(), None)
        return self._twin

    def copy(self, source: Any, spec: TensorSpec, wanted: TensorSpec) -> Any:
        """Return a copy of a tensor of ``spec`` in private writable memory with the exact layout of ``wanted``."""
        if self._layouts is not None:
            return self._layouts.restored(self._layouts.dense(source, spec), wanted, adopt=False)
        data = borrowed(self.backend.to_host(source, spec))
        return self.backend.from_host(data.reshape(wanted.dense().shape), wanted)

    def shares(self, spec: TensorSpec, wanted: TensorSpec) -> bool:
        """Whether who asks now writes into nothing, and ``wanted`` may lie in the memory of a tensor of ``spec``."""
        is_layout = self.shared_memory is not None and (spec.conj, spec.neg) == (wanted.conj, wanted.neg)
        return is_layout and not self.may_write()

    def relaid(self, tensor: Any, spec: TensorSpec, wanted: TensorSpec) -> Any:
        """Return a tensor of ``wanted`` in the memory of a rebuilt one of ``spec``, or else a copy of it."""
        if spec == wanted and not self.may_write():
            return self.backend.detached(tensor)
        shared = self.shared_memory if self.shares(spec, wanted) else None
        return self.copy(tensor, spec, wanted) if shared is None else shared.relaid(tensor, spec, wanted)

    def launched_spec(self, nbytes: int) -> TensorSpec:
        """Return the spec of what :meth:`launch` has returned, which has so many bytes."""
        spec = self.kernels.result
        return spec if spec.shape != (-1,) else TensorSpec((nbytes,), (1,), 0, spec.dtype, spec.device)


class HostRoute(PayloadRoute):
    """For tensors that one call encodes and stores on the host, on any thread.

    Args:
        pipeline: what runs on the host.
    """

    def __init__(self, parts: RouteParts, pipeline: Pipeline) -> None:
        super().__init__(parts)
        self.pipeline = pipeline
        self.tier, self.is_costly = pipeline.tier, pipeline.is_costly
        self.may_hang = self.tier != "memory"
        codecs = self.plan.codecs[len(self.kernels) :]
        are_quick = bool(codecs) and all(getattr(codec, "is_quick", False) for codec in codecs)
        self.may_be_now = are_quick and self.tier == "memory"
        self.is_now = self.may_be_now and self.spec.nbytes <= _SHORT_BYTES
        is_plain = not self.kernels and self.spec.device == "cpu"
        if is_plain and not self.backend.backward_writes and isinstance(self.backend, SupportsSharedMemory):
            self.shared_memory = self.backend

    def private_source(self, tensor: Any, spec: TensorSpec) -> tuple[Any, int | None]:
        """Return the elements in host memory where the program waits for a copy from a device, else a private copy."""
        if self.runs_kernels or spec.device == "cpu":
            return super().private_source(tensor, spec)
        data = self.backend.to_host(tensor, spec)
        return data, checksum(as_bytes(data))

    def copy(self, source: Any, spec: TensorSpec, wanted: TensorSpec) -> Any:
        """Return a copy of a tensor, or of its elements; see :meth:`PayloadRoute.copy`."""
        if not isinstance(source, np.ndarray):
            return super().copy(source, spec, wanted)
        return self.backend.from_host(borrowed(source).reshape(wanted.dense().shape), wanted)

    def encode(self, source: Any, spec: TensorSpec, *, private: bool = False) -> Stored | None:
        """Run the codecs on a tensor, or its elements, and store the result; see :meth:`PayloadRoute.encode`."""
        if self.runs_kernels:
            source = self.launch(source, spec)
            spec, is_mine = self.backend.spec(source), True  # on the CPU it is the payload's own memory
        else:
            # With codecs it is still borrowed: what they pass on as it is stays in the tensor that it is in.
            is_mine = private and not self.plan.codecs
        data = source if isinstance(source, np.ndarray) else self.backend.to_host(source, spec)
        if is_mine:
            data = adopted(data)
        elif self.plan.codecs:  # also a copy of what is not dense: the same bytes in there would save nothing
            data = borrowed(data)
        return self.pipeline.encode(data)

    def decode(self, stored: Stored) -> Array:
        """Return an array; see :meth:`PayloadRoute.decode`."""
        return self.pipeline.decode(stored)

    def rebuild(self, data: Any, spec: TensorSpec, interleaved: InterleavedPlace | None = None) -> Any:
        """Return a fresh tensor; see :meth:`PayloadRoute.rebuild`."""
        if interleaved is not None:
            return interleaved.rebuild(data, spec)
        if not self.runs_kernels:
            return self.backend.from_host(data.reshape(spec.order.shape), spec)
        kernels = self.backend.kernels
        assert kernels is not None, "a backend without kernels"
        return self.assemble(kernels.payload(data, self.launched_spec(data.nbytes)), spec, adopt=True)


class DeviceRoute(PayloadRoute):
    """For tensors whose payload never leaves their device."""

    tier = "device"
    is_at_hand = True
    shares_source = False

    def __init__(self, parts: RouteParts) -> None:
        super().__init__(parts)
        self.needs_worker = self.transfers is None  # else all that there is to do is launched

    def encode(self, source: Any, spec: TensorSpec, *, private: bool = False) -> Stored:
        """Run the kernels; see :meth:`PayloadRoute.encode`."""
        return self.stored_at_once(self.launch(source, spec), None)

    def decode(self, stored: Stored) -> Any:
        """Return the payload itself."""
        return stored.slot

    def rebuild(self, data: Any, spec: TensorSpec, interleaved: InterleavedPlace | None = None) -> Any:
        """Return a fresh tensor; see :meth:`PayloadRoute.rebuild`."""
        return self.assemble(data, spec, adopt=False)

    def send(self, launched: Any, source: Any, compute: Stream) -> None:
        """Leave it where it is."""

    def stored_at_once(self, launched: Any, flight: Transfer | None) -> Stored:
        """Return the place of a payload on its device, which the payload itself is."""
        return Stored(None, launched, self.backend.nbytes(launched))

    def on_device(self, stored: Stored | None, flight: Transfer | None) -> Any:
        """Return the payload once it is there."""
        return None if stored is None else stored.slot


class TransferRoute(HostRoute):
    """For tensors that are transferred to the host beside the computation, and back."""

    transfers: Transfers

    def __init__(self, parts: RouteParts, pipeline: Pipeline) -> None:
        super().__init__(parts, pipeline)
        self.may_be_now = self.is_now = False
        self.shares_source = not self.kernels and parts.spec.order.is_dense
        """Whether what is transferred is the tensor's own memory."""
        self.needs_worker = pipeline.looks_at_bytes
        self.loses_on_host = not all(codec.lossless for codec in self.plan.codecs[len(self.kernels) :])
        """Whether a codec that runs after the transfer loses something."""

    def private_source(self, tensor: Any, spec: TensorSpec) -> tuple[Any, None]:
        """Return the tensor itself: what is launched is private, or a copy is made then, if it has to be."""
        return self.backend.detached(tensor), None

    def send(self, launched: Any, source: Any, compute: Stream) -> Transfer | None:
        """Start the transfer to the host; return None if there is no memory for it."""
        held = source if self.shares_source else launched
        return self.transfers.out(launched, held, self.launched_spec(self.backend.nbytes(launched)), compute)

    def stored_at_once(self, launched: Any, flight: Transfer | None) -> Stored:
        """Return the place of a payload whose bytes may still be arriving."""
        assert flight is not None, "what is not under way"
        return self.pipeline.put(flight.array)

    def store(self, transferred: Array) -> Stored:
        """Run the codecs of the host and store the result.

        Args:
            transferred: bytes of what :meth:`launch` returned, which are this route's now.

        Raises:
            CodecError: a codec raised, or returned something its ``encoded_spec`` does not announce.
            StoreError: the store could not take the payload.
        """
        spec = self.launched_spec(transferred.nbytes)
        stored = self.pipeline.encode(transferred.view(spec.carrier).reshape(spec.shape))
        assert stored is not None, "memory that was handed over is never declined"
        return stored

    def as_stored(self, transferred: Array) -> Array:
        """Return what will be read of bytes that were transferred and are not stored yet; see :meth:`round_trip`."""
        twin, launched = self._in_memory(self.spec), self.launched_spec(transferred.nbytes)
        assert isinstance(twin, HostRoute), "what stays on its device is not transferred"
        stored = twin.pipeline.encode(borrowed(transferred.view(launched.carrier).reshape(launched.shape)))
        return transferred if stored is None else twin.pipeline.decode(stored)

    def decode(self, stored: Stored) -> Array:
        """Return what was transferred, in memory that a device reads on its own if there is any left."""
        data = self.pipeline.decode(stored)
        return self.transfers.staged(data, self.spec.device) if self.needs_worker else data

    def on_device(self, stored: Stored | None, flight: Transfer | None) -> Any:
        """Return what is transferred as long as the transfer holds it."""
        return None if flight is None else flight.held


def route_for(
    plan: Plan,
    spec: TensorSpec,
    backend: Backend[Any],
    config: StoreConfig,
    store: Store,
    ledger: Ledger,
    transfers: Transfers | None,
) -> PayloadRoute:
    """Return the route of a plan for tensors of one spec.

    Args:
        plan: codecs to run, and a store.
        spec: the tensors' spec.
        backend: the framework's adapter.
        config: the plan's store, or memory where it names none.
        store: opened from ``config``.
        ledger: where stages and payloads are counted.
        transfers: of the session; None where nothing is to be transferred beside the computation.
    """
    places = stage_places(plan.codecs, config, spec)
    kernels = device_stages(backend, plan.codecs, spec.dense(), places[:-1], ledger)
    streams = transfers if transfers is not None and transfers.has_streams(spec.device) else None
    parts = RouteParts(plan, spec, backend, kernels, ledger, places[-1], streams)
    if plan.store is None and len(kernels) == len(plan.codecs) > 0 and spec.device != "cpu":
        return DeviceRoute(parts)
    ran = len(kernels)
    stages = host_stages(plan.codecs[ran:], kernels.result, places[ran:-1], ledger)
    pipeline = Pipeline(stages, config, store, ledger.stage(config.tier), places[-1])
    return HostRoute(parts, pipeline) if streams is None else TransferRoute(parts, pipeline)
