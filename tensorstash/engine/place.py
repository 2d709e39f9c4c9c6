"""The place of a content that is not resident, and its way there and back.

Kernels run where the tensor is while each codec has one; then the payload is transferred to the host, once and never
back, and the other codecs and the store work on it there. A place serves all tensors of one kind.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, cast

from tensorstash.abilities import Backend, Layouts, SupportsGraph, SupportsSharedMemory
from tensorstash.engine.ledger import Ledger
from tensorstash.engine.shared_span import SharedSpan
from tensorstash.engine.stages import Stages
from tensorstash.engine.transfers import Transfers
from tensorstash.host.arrays import as_bytes, borrowed
from tensorstash.host.checksum import checksum
from tensorstash.policies.plan import Plan
from tensorstash.protocols import Slot, Store
from tensorstash.spec import TensorSpec


class Stored:
    """A payload in its place; owns the slot, which is free when this is dropped.

    Args:
        store: of the slot; None for a payload that stays on its device and is the slot itself.
        slot: the store's own name for it.
        nbytes: bytes in the slot.
        digest: checksum of them, unless the store verifies its records.
        seconds: that it took to put them there.
    """

    __slots__ = ("__weakref__", "digest", "nbytes", "seconds", "slot", "store")

    def __init__(
        self, store: Store | None, slot: Slot, nbytes: int, digest: int | None = None, seconds: float = 0.0
    ) -> None:
        self.store = store
        self.slot = slot
        self.nbytes = nbytes
        self.digest = digest
        self.seconds = seconds

    def __del__(self) -> None:
        if self.store is not None:
            self.store.delete(self.slot)


class Place(ABC):
    """Captures saved tensors of one spec, loads their bytes and rebuilds them. Thread-safe, holds no payload.

    Args:
        plan: codecs to run, and a store.
        spec: of the tensors, as their policy was asked about them.
        backend: the framework's adapter.
        kernels: of codecs that run where the tensor is.
        ledger: counts stages and payloads.
        label: its name in messages.
        transfers: of the session; None where nothing is transferred beside the computation.
        number: the same for all places of a session that have the same plan.
        in_memory: returns the same place with a store in memory, where nothing is counted.
    """

    tier: str
    may_hang = False
    """Whether its store may never answer, so that only threads that can be given up call it."""
    is_costly = False
    """Whether it takes longer to load than a copy does."""
    may_be_now = is_now = False
    """Whether its codecs are quick and the payload stays in host memory, so that they may run in the hooks; and whether
    they always do, as the tensor is small."""
    needs_worker = True
    """Whether there is work behind the launch, or all of it."""
    shares_source = False
    """Whether the tensor's own memory is transferred."""
    is_at_hand = False
    """Whether each rebuilt tensor is made of the payload as it is, so that nothing loaded is worth holding."""
    shared_memory: SupportsSharedMemory[Any] | None = None
    """Puts rebuilt tensors into one memory, where they are on the host and backward does not write."""

    def __init__(
        self,
        plan: Plan,
        spec: TensorSpec,
        backend: Backend[Any],
        kernels: Stages,
        ledger: Ledger,
        label: str,
        transfers: Transfers | None,
        number: int,
        in_memory: "Callable[[Place], Place]",
    ) -> None:
        is_shared = not backend.backward_writes and isinstance(backend, SupportsSharedMemory)
        self.relays = cast(SupportsSharedMemory[Any], backend) if is_shared else None
        """Gives all readers one memory, where backward does not write into it."""
        self.plan, self.backend, self.kernels, self.ledger = plan, backend, kernels, ledger
        self.label, self.transfers, self.number = label, transfers, number
        self.saved = spec
        """Of the tensors, as their policy was asked about them."""
        self.spec = spec.dense()
        """Of their elements."""
        self.is_lossless = plan.is_lossless
        self.runs_kernels = bool(kernels)
        self.layouts: Layouts[Any] | None = backend.layouts
        self.may_write = backend.may_write if isinstance(backend, SupportsGraph) else bool
        self._in_memory = in_memory
        self._twin: Place | None = None

    @abstractmethod
    def capture(self, source: Any, spec: TensorSpec, *, private: bool = False) -> Stored | None:
        """Run the codecs on a tensor of ``spec`` and store the result.

        Args:
            source: the tensor.
            spec: its spec.
            private: whether nobody else has the tensor, so that its memory may become the payload.

        Returns:
            The stored payload; None if the codecs have passed on borrowed memory as it is, which stays there.

        Raises:
            CodecError: a codec or a kernel raised, or returned something its ``encoded_spec`` does not announce.
            StoreError: the store could not take the payload.
        """

    @abstractmethod
    def load(self, stored: Stored) -> Any:
        """Return the input of :meth:`rebuild`: an array, or the payload itself if it has stayed on its device.

        Args:
            stored: result of :meth:`capture`.

        Raises:
            CodecError: a codec raised, or returned something of another shape or dtype than went in.
            StoreError: the store could not give the payload back.
        """

    @abstractmethod
    def rebuild(self, data: Any, spec: TensorSpec, span: SharedSpan | None = None) -> Any:
        """Return a fresh, detached tensor in private writable memory with the exact layout of ``spec``.

        Args:
            data: from :meth:`load`; memory of a writable array may be adopted.
            spec: any layout of the same block of memory.
            span: memory to share with other contents.

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
        assert self.layouts is not None, "a backend without layouts"
        dense = self.layouts.dense(source, spec)
        return self.kernels.encode(dense) if self.runs_kernels else dense

    def assemble(self, launched: Any, spec: TensorSpec, *, adopt: bool) -> Any:
        """Return a fresh, detached tensor in private memory with the exact layout of ``spec``.

        Args:
            launched: result of :meth:`launch`.
            spec: any layout of the same block of memory.
            adopt: whether its memory may be used for the result.

        Raises:
            CodecError: a kernel raised, or returned something of another shape or dtype than went in.
        """
        assert self.layouts is not None, "a backend without layouts"
        dense = self.kernels.decode(launched) if self.runs_kernels else launched
        return self.layouts.restored(dense, spec, adopt=adopt or self.runs_kernels)

    def round_trip(self, source: Any, spec: TensorSpec, wanted: TensorSpec) -> Any:
        """Return the later result for a tensor of ``spec`` that is not stored yet, with the layout of ``wanted``.

        Where a codec loses something, that is not a copy: whether a tensor was asked for before or after its bytes
        had left must not decide which gradients a program computes.

        Raises:
            CodecError: a codec or a kernel raised, or returned something its ``encoded_spec`` does not announce.
        """
        if self.is_lossless:
            return self.copy(source, spec, wanted)
        stored = self.twin.capture(source, spec)
        return self.copy(source, spec, wanted) if stored is None else self.twin.rebuild(self.twin.load(stored), wanted)

    @property
    def twin(self) -> "Place":
        """The same place with a store in memory, where nothing is counted."""
        if self._twin is None:
            self._twin = self._in_memory(self)
        return self._twin

    def forward(self, source: Any, spec: TensorSpec, wanted: TensorSpec, *, may_give: bool) -> Any:
        """Return a tensor of ``wanted`` for a reader of a source that has not left: itself, its memory, or a copy.

        Args:
            source: an alias of the saved tensor.
            spec: of the source.
            wanted: another layout of the same block of memory.
            may_give: whether the reader may have the source itself.
        """
        if may_give and spec == wanted:
            return source
        shared = self.relays if self.shares(spec, wanted) else None
        if shared is None:
            return self.copy(source, spec, wanted)
        return source if spec == wanted else shared.relaid(source, spec, wanted)

    def copy(self, source: Any, spec: TensorSpec, wanted: TensorSpec) -> Any:
        """Return a copy of a tensor of ``spec`` in private writable memory with the exact layout of ``wanted``."""
        if self.layouts is not None:
            return self.layouts.restored(self.layouts.dense(source, spec), wanted, adopt=False)
        data = borrowed(self.backend.to_host(source, spec))
        return self.backend.from_host(data.reshape(wanted.dense().shape), wanted)

    def shares(self, spec: TensorSpec, wanted: TensorSpec) -> bool:
        """Whether the running operation only reads, and ``wanted`` may lie in the memory of a tensor of ``spec``."""
        is_layout = self.relays is not None and (spec.conj, spec.neg) == (wanted.conj, wanted.neg)
        return is_layout and not self.may_write()

    def relaid(self, tensor: Any, spec: TensorSpec, wanted: TensorSpec) -> Any:
        """Return a tensor of ``wanted`` in the memory of a rebuilt one of ``spec``, or else a copy of it."""
        if spec == wanted and not self.may_write():
            return self.backend.detached(tensor)
        shared = self.relays if self.shares(spec, wanted) else None
        return self.copy(tensor, spec, wanted) if shared is None else shared.relaid(tensor, spec, wanted)

    def launched_spec(self, nbytes: int) -> TensorSpec:
        """Return the spec of the result of :meth:`launch` that has so many bytes."""
        spec = self.kernels.result
        return spec if spec.shape != (-1,) else TensorSpec((nbytes,), (1,), 0, spec.dtype, spec.device)


class DevicePlace(Place):
    """Payloads that never leave their device, made by kernels."""

    tier = "device"
    is_at_hand = True

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.needs_worker = self.transfers is None  # else all that there is to do is launched

    def capture(self, source: Any, spec: TensorSpec, *, private: bool = False) -> Stored:
        """Run the kernels; see :meth:`Place.capture`."""
        return self.stored(self.launch(source, spec))

    def load(self, stored: Stored) -> Any:
        """Return the payload itself."""
        return stored.slot

    def rebuild(self, data: Any, spec: TensorSpec, span: SharedSpan | None = None) -> Any:
        """Return a fresh tensor; see :meth:`Place.rebuild`."""
        return self.assemble(data, spec, adopt=False)

    def stored(self, launched: Any) -> Stored:
        """Return a payload that is its own slot."""
        return Stored(None, launched, self.backend.nbytes(launched))
