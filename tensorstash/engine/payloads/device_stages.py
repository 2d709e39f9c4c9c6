"""The codecs of a plan that run where the tensor is, before its payload crosses to the host."""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Generic, TypeVar

from tensorstash.abilities import Kernel, SupportsKernels
from tensorstash.engine.stats import Ledger
from tensorstash.errors import CodecError, StashError
from tensorstash.protocols import Backend, Codec
from tensorstash.spec import TensorSpec, contiguous_strides

T = TypeVar("T")


class KernelChain(Generic[T]):
    """As many codecs of a plan, from the first on, as the backend has kernels for. Thread-safe, holds no payload.

    Args:
        backend: the framework's adapter.
        codecs: all codecs of the plan.
        spec: of the dense elements.
        places: a name for each codec in messages.
        ledger: where stages are counted.
    """

    __slots__ = ("_backend", "_ledger", "_steps", "spec")

    def __init__(
        self, backend: Backend[T], codecs: Sequence[Codec], spec: TensorSpec, places: Sequence[str], ledger: Ledger
    ) -> None:
        self._backend = backend
        self._ledger = ledger
        steps: list[tuple[Codec, Kernel[T], TensorSpec, str]] = []
        if isinstance(backend, SupportsKernels):
            for codec, place in zip(codecs, places, strict=True):
                kernel = backend.kernel(codec, spec)
                if kernel is None:
                    break
                steps.append((codec, kernel, spec, place))
                spec = codec.encoded_spec(spec)
        self._steps = tuple(steps)
        self.spec = spec
        """What the last kernel returns; the spec of the dense elements if there is none."""

    def __len__(self) -> int:
        return len(self._steps)

    def encode(self, dense: T) -> T:
        """Return the payload of the last kernel.

        Raises:
            CodecError: a kernel raised, or returned something its codec's ``encoded_spec`` does not announce.
        """
        for codec, kernel, spec, place in self._steps:
            before, started = self._backend.nbytes(dense), perf_counter()
            dense = _run(kernel.encode, dense, place, "encode")
            self._check(dense, codec.encoded_spec(spec), place, "encode")
            self._ledger.stage_in(codec.name, before, self._backend.nbytes(dense), perf_counter() - started)
        return dense

    def decode(self, payload: T) -> T:
        """Return the dense elements in fresh memory.

        Raises:
            CodecError: a kernel raised, or returned something of another shape or dtype than went in.
        """
        for codec, kernel, spec, place in reversed(self._steps):
            started = perf_counter()
            payload = _run(kernel.decode, payload, place, "decode")
            self._check(payload, spec, place, "decode")
            self._ledger.stage_back(codec.name, perf_counter() - started)
        return payload

    def _check(self, result: T, expected: TensorSpec, place: str, verb: str) -> None:
        if not self._backend.owns(result):
            raise CodecError(f"{place}: {verb} returned {type(result).__name__}, expected a tensor")
        got = self._backend.spec(result)
        shape_fits = len(got.shape) == 1 if expected.shape == (-1,) else got.shape == expected.shape
        is_contiguous = got.strides == contiguous_strides(got.shape)
        if not shape_fits or got.dtype != expected.dtype or got.device != expected.device or not is_contiguous:
            shape = "one dimension" if expected.shape == (-1,) else f"shape {expected.shape}"
            raise CodecError(
                f"{place}: {verb} returned {got} with strides {got.strides}, "
                f"expected {expected.dtype} of {shape} on {expected.device}, contiguous"
            )


def _run(method: Callable[[T], T], data: T, place: str, verb: str) -> T:
    try:
        return method(data)
    except StashError as error:
        raise error.at(place) from error
    except Exception as error:
        raise CodecError(f"{place}: {verb} raised {type(error).__name__}: {error}") from error


def stage_places(codecs: Sequence[Codec], store: object, spec: TensorSpec) -> tuple[str, ...]:
    """Return what messages call each codec of a plan, and the store behind them."""
    stages: tuple[Any, ...] = (*codecs, store)
    return tuple(f"stage {i} of {len(stages)} ({stage!r}), tensor {spec}" for i, stage in enumerate(stages, start=1))
