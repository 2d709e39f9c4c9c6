"""One plan for one kind of tensor, from the tensor to its payload and back.

Kernels run where the tensor is while each codec has one; then the payload crosses to the host, once and never back,
and the other codecs and the store work on it there. A plan without a store whose codecs all ran on an accelerator
leaves its payload there.
"""

from dataclasses import replace
from operator import call
from typing import Any, Generic, TypeVar

from tensorstash.abilities import SupportsKernels, SupportsSharedMemory, SupportsStreams
from tensorstash.engine.payloads.device_stages import KernelChain, stage_places
from tensorstash.engine.payloads.interleaved import InterleavedPlace
from tensorstash.engine.payloads.pipeline import Pipeline, Stored
from tensorstash.engine.stats import Ledger
from tensorstash.engine.timeouts import Ask
from tensorstash.host.arrays import Array, adopted, borrowed
from tensorstash.policies.plan import Plan
from tensorstash.protocols import Backend, Store, StoreConfig
from tensorstash.spec import TensorSpec
from tensorstash.stores.memory import Memory

T = TypeVar("T")


class PayloadRoute(Generic[T]):
    """Takes saved tensors of one spec to their payloads, and rebuilds them. Thread-safe, holds no payload.

    Args:
        plan: codecs to run, and a store.
        spec: the tensor's spec.
        backend: the framework's adapter.
        config: the plan's store, or memory where it names none.
        store: opened from ``config``.
        ledger: where stages are counted.
    """

    __slots__ = (
        "_backend",
        "_device",
        "_kernels",
        "_pipeline",
        "_round_trip",
        "is_costly",
        "is_lossless",
        "is_on_device",
        "is_streamed",
        "plan",
        "shared_memory",
        "shares_source",
        "spec",
        "store_place",
        "tier",
        "works_on_host",
    )

    def __init__(
        self, plan: Plan, spec: TensorSpec, backend: Backend[T], config: StoreConfig, store: Store, ledger: Ledger
    ) -> None:
        self.plan = plan
        self.spec = spec.dense()
        self.is_lossless = all(codec.lossless for codec in plan.codecs)
        self._round_trip: PayloadRoute[T] | None = None
        places = stage_places(plan.codecs, config, spec)
        self.store_place = places[-1]
        self._backend = backend
        self._device: SupportsKernels[T] | None = backend if isinstance(backend, SupportsKernels) else None
        self._kernels = KernelChain(backend, plan.codecs, self.spec, places[:-1], ledger)
        ran = len(self._kernels)
        self.is_on_device = plan.store is None and ran == len(plan.codecs) > 0 and spec.device != "cpu"
        """Whether the payload never leaves its device."""
        rest = Plan(plan.codecs[ran:], config)
        kernels = self._kernels
        self._pipeline = (
            None if self.is_on_device else Pipeline(rest, kernels.spec, config, store, ledger, places[ran:])
        )
        self.tier = "device" if self.is_on_device else config.tier
        self.shared_memory: SupportsSharedMemory[T] | None = None
        """What puts rebuilt tensors into one memory, where they are on the host and backward does not write."""
        if not ran and spec.device == "cpu" and isinstance(backend, SupportsSharedMemory):
            self.shared_memory = None if backend.backward_writes else backend
        self.is_costly = self._pipeline is not None and self._pipeline.is_costly
        self.is_streamed = isinstance(backend, SupportsStreams) and backend.current_stream(spec.device) is not None
        """Whether the device works behind the program, so that :meth:`launch` and :meth:`store` can be apart."""
        self.shares_source = not ran and spec.order.is_dense
        """Whether what crosses to the host is the tensor's own memory."""
        self.works_on_host = not self.is_on_device and not (not rest.codecs and getattr(store, "takes_pending", False))
        """Whether somebody looks at the bytes once they are on the host, which a worker then waits for."""

    def encode(self, source: T, spec: TensorSpec, ask: Ask = call, *, private: bool = False) -> Stored | None:
        """Run the codecs on a tensor of ``spec`` and store the result.

        Args:
            source: the tensor.
            spec: its spec.
            ask: how a store is asked that may not answer.
            private: whether nobody else has the tensor, so that its memory may become the payload.

        Returns:
            Where the payload is; None if the codecs have passed on borrowed memory as it is and a copy of it
            would only take more memory.

        Raises:
            CodecError: a codec raised, or returned something its ``encoded_spec`` does not announce.
            StoreError: the store could not take the payload.
        """
        backend = self._backend
        if self._device is None or not self._kernels:
            assert self._pipeline is not None, "a plan without codecs and without a store has no payload"
            data = backend.to_host(source, spec)
            # With codecs it is still borrowed: what they pass on as it is stays in the tensor that it is in.
            return self._pipeline.encode(adopted(data) if private and not self.plan.codecs else data, ask)
        payload = self.launch(source, spec)
        if self._pipeline is None:
            return self.resident(payload)
        # On the CPU that is the payload's own memory, which nobody else has.
        return self._pipeline.encode(adopted(backend.to_host(payload, backend.spec(payload))), ask)

    def launch(self, source: T, spec: TensorSpec) -> T:
        """Return what crosses to the host, or stays on the device: the dense elements, or the last kernel's payload.

        Raises:
            CodecError: a kernel raised, or returned something its codec's ``encoded_spec`` does not announce.
        """
        assert self._device is not None, "a backend without kernels"
        return self._kernels.encode(self._device.dense(source, spec))

    def resident(self, payload: T) -> Stored:
        """Return the place of a payload that stays on its device."""
        return Stored(None, payload, self._backend.nbytes(payload))

    def transferred_spec(self, nbytes: int) -> TensorSpec:
        """Return the spec of what crosses to the host, which has so many bytes."""
        spec = self._kernels.spec
        return spec if spec.shape != (-1,) else TensorSpec((nbytes,), (1,), 0, spec.dtype, spec.device)

    def store(self, transferred: Array, ask: Ask = call) -> Stored | None:
        """Run the codecs of the host and store the result.

        Args:
            transferred: bytes of what :meth:`launch` returned, which are this route's now. They may still be arriving
                if it does not :attr:`works_on_host`.
            ask: how a store is asked that may not answer.

        Raises:
            CodecError: a codec raised, or returned something its ``encoded_spec`` does not announce.
            StoreError: the store could not take the payload.
        """
        assert self._pipeline is not None, "a payload that stays on its device"
        spec = self.transferred_spec(transferred.nbytes)
        return self._pipeline.encode(transferred.view(spec.carrier).reshape(spec.shape), ask)

    def decode(self, stored: Stored, ask: Ask = call) -> Any:
        """Return what :meth:`rebuild` needs: an array, or the payload itself where it has stayed on its device.

        Args:
            stored: what :meth:`encode` returned.
            ask: how a store is asked that may not answer.

        Raises:
            CodecError: a codec or a kernel raised, or returned something of another shape or dtype than went in.
            StoreError: the store could not give the payload back.
        """
        if self._pipeline is None:
            return stored.slot
        return self._pipeline.decode(stored, ask)

    def rebuild(self, data: Any, spec: TensorSpec, place: InterleavedPlace | None = None) -> T:
        """Return a fresh, detached tensor in private writable memory with the exact layout of ``spec``.

        Args:
            data: from :meth:`decode`; memory of a writable array may be adopted.
            spec: any layout of the same block of memory.
            place: a place of its own in memory that is shared.

        Raises:
            CodecError: a kernel raised, or returned something of another shape or dtype than went in.
        """
        backend = self._backend
        if place is not None:
            tensor: T = place.rebuild(data, spec)
            return tensor
        if self._device is None or not self._kernels:
            return backend.from_host(data.reshape(spec.dense().shape), spec)
        if self._pipeline is not None:
            data = self._device.payload(data, self.transferred_spec(data.nbytes))
        return self.assemble(data, spec, adopt=False)

    def assemble(self, transferred: T, spec: TensorSpec, *, adopt: bool) -> T:
        """Return a fresh, detached tensor in private memory with the exact layout of ``spec``.

        Args:
            transferred: as :meth:`launch` returned it.
            spec: any layout of the same block of memory.
            adopt: whether its memory may be used for the result.

        Raises:
            CodecError: a kernel raised, or returned something of another shape or dtype than went in.
        """
        assert self._device is not None, "a backend without kernels"
        return self._device.restored(self._kernels.decode(transferred), spec, adopt=adopt or bool(self._kernels))

    def round_trip(self, source: T, spec: TensorSpec, wanted: TensorSpec) -> T:
        """Return what will come back of a tensor of ``spec`` that is not stored yet, with the layout of ``wanted``.

        Where a codec loses something, that is not a copy: whether a tensor was asked for before or after its bytes
        had left must not decide which gradients a program computes.

        Raises:
            CodecError: a codec or a kernel raised, or returned something its ``encoded_spec`` does not announce.
        """
        if self.is_lossless:
            return self.copy(source, spec, wanted)
        round_trip = self._round_trip
        if round_trip is None:
            here = Memory()
            plan = replace(self.plan, store=here if self.plan.store is not None else None)
            round_trip = self._round_trip = PayloadRoute(plan, spec, self._backend, here, here.open(), Ledger())
        stored = round_trip.encode(source, spec)
        return (
            self.copy(source, spec, wanted) if stored is None else round_trip.rebuild(round_trip.decode(stored), wanted)
        )

    def copy(self, source: T, spec: TensorSpec, wanted: TensorSpec) -> T:
        """Return a copy of a tensor of ``spec`` in private writable memory with the exact layout of ``wanted``."""
        backend = self._backend
        if self._device is not None:
            return self._device.restored(self._device.dense(source, spec), wanted, adopt=False)
        data = borrowed(backend.to_host(source, spec))
        return backend.from_host(data.reshape(wanted.dense().shape), wanted)
