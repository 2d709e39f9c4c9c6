"""One plan for one kind of tensor, from the tensor to its payload and back.

Kernels run where the tensor is while each codec has one; then the payload crosses to the host, once and never back,
and the other codecs and the store work on it there. A plan without a store whose codecs all ran on an accelerator
leaves its payload there.
"""

from operator import call
from typing import Any, Generic, TypeVar

from tensorstash.buffers import Array, adopted, borrowed
from tensorstash.engine.kernels import KernelChain, stage_places
from tensorstash.engine.patience import Ask
from tensorstash.engine.pipeline import Pipeline, Stored
from tensorstash.engine.stats import Ledger
from tensorstash.plan import Plan
from tensorstash.protocols import Backend, Store, StoreConfig, SupportsKernels
from tensorstash.spec import TensorSpec

T = TypeVar("T")


class Passage(Generic[T]):
    """Takes saved tensors of one spec to their payloads, and rebuilds them. Thread-safe, holds no payload.

    Args:
        plan: codecs to run, and a store.
        spec: the tensor's spec.
        backend: the framework's adapter.
        config: the plan's store, or memory where it names none.
        store: opened from ``config``.
        ledger: where stages are counted.
    """

    __slots__ = ("_backend", "_device", "_kernels", "_pipeline", "is_costly", "plan", "spec", "store_place", "tier")

    def __init__(
        self, plan: Plan, spec: TensorSpec, backend: Backend[T], config: StoreConfig, store: Store, ledger: Ledger
    ) -> None:
        self.plan = plan
        self.spec = spec.dense()
        places = stage_places(plan.codecs, config, spec)
        self.store_place = places[-1]
        self._backend = backend
        self._device: SupportsKernels[T] | None = backend if isinstance(backend, SupportsKernels) else None
        self._kernels = KernelChain(backend, plan.codecs, self.spec, places[:-1], ledger)
        ran = len(self._kernels)
        stays = plan.store is None and ran == len(plan.codecs) > 0 and spec.device != "cpu"
        rest = Plan(plan.codecs[ran:], config)
        self._pipeline = None if stays else Pipeline(rest, self._kernels.spec, config, store, ledger, places[ran:])
        self.tier = "device" if stays else config.tier
        self.is_costly = self._pipeline is not None and self._pipeline.is_costly

    def encode(self, source: T, spec: TensorSpec, ask: Ask = call) -> Stored | None:
        """Run the codecs on a tensor of ``spec`` and store the result.

        Args:
            source: the tensor.
            spec: its spec.
            ask: how a store is asked that may not answer.

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
            return self._pipeline.encode(backend.to_host(source, spec).wait(), ask)
        payload = self._kernels.encode(self._device.dense(source, spec))
        if self._pipeline is None:
            return Stored(None, payload, backend.nbytes(payload))
        # On the CPU that is the payload's own memory, which nobody else has.
        return self._pipeline.encode(adopted(backend.to_host(payload, backend.spec(payload)).wait()), ask)

    def decode(self, stored: Stored, ask: Ask = call) -> Any:
        """Return what :meth:`rebuild` needs: an array, or the payload itself where it has stayed on its device.

        Args:
            stored: what :meth:`encode` returned.
            ask: how a store is asked that may not answer.

        Raises:
            CodecError: a codec of the host raised, or returned something of another shape or dtype than went in.
            StoreError: the store could not give the payload back.
        """
        return stored.slot if self._pipeline is None else self._pipeline.decode(stored, ask)

    def rebuild(self, data: Any, spec: TensorSpec) -> T:
        """Return a fresh, detached tensor in private writable memory with the exact layout of ``spec``.

        Args:
            data: from :meth:`decode`; memory of a writable array may be adopted.
            spec: any layout of the same block of memory.

        Raises:
            CodecError: a kernel raised, or returned something of another shape or dtype than went in.
        """
        backend = self._backend
        if self._device is None or not self._kernels:
            return backend.from_host(data.reshape(spec.dense().shape), spec)
        if self._pipeline is not None:
            data = self._device.payload(data, _sized(self._kernels.spec, data))
        return self._device.restored(self._kernels.decode(data), spec, adopt=True)

    def copy(self, source: T, spec: TensorSpec, wanted: TensorSpec) -> T:
        """Return a copy of a tensor of ``spec`` in private writable memory with the exact layout of ``wanted``."""
        backend = self._backend
        if self._device is not None:
            return self._device.restored(self._device.dense(source, spec), wanted, adopt=False)
        data = borrowed(backend.to_host(source, spec).wait())
        return backend.from_host(data.reshape(wanted.dense().shape), wanted)


def _sized(spec: TensorSpec, data: Array) -> TensorSpec:
    """Return the spec of a payload whose length, where it depends on the content, is that of ``data``."""
    if spec.shape != (-1,):
        return spec
    return TensorSpec(data.shape, (1,), 0, spec.dtype, spec.device)
