"""The codecs of a plan, one after the other and back: on arrays, or on tensors where a device has kernels for them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from time import perf_counter
from typing import Any

import numpy as np

from tensorstash.abilities import Backend
from tensorstash.engine.ledger import Ledger
from tensorstash.errors import CodecError, StashError
from tensorstash.protocols import Codec
from tensorstash.spec import DTYPES, TensorSpec, contiguous_strides

Run = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Stage:
    """One codec for one kind of buffer.

    Args:
        name: of the codec.
        place: what messages call it.
        before: what goes in.
        after: what comes out.
        encode: makes one of the other.
        decode: makes it back.
        given: what both take besides.
    """

    name: str
    place: str
    before: TensorSpec
    after: TensorSpec
    encode: Run
    decode: Run
    given: tuple[TensorSpec, ...] = ()

    def run(self, method: Run, data: Any, verb: str) -> Any:
        """Return what a method makes of a buffer; an error of it says where it was."""
        try:
            return method(data, *self.given)
        except StashError as error:
            raise error.at(self.place) from error
        except Exception as error:
            raise CodecError(f"{self.place}: {verb} raised {type(error).__name__}: {error}") from error


class Stages:
    """Successive codecs of a plan that run in one place. Thread-safe, holds no payload.

    Args:
        stages: in the order of encoding.
        spec: what goes into the first.
        ledger: where they are counted.
        nbytes: says how large a buffer is.
        fault: says what is wrong with a buffer that is to be of a spec, and what was expected; None if nothing is.
    """

    __slots__ = ("_fault", "_ledger", "_nbytes", "_stages", "result")

    def __init__(
        self,
        stages: Sequence[Stage],
        spec: TensorSpec,
        ledger: Ledger,
        nbytes: Callable[[Any], int],
        fault: Callable[[Any, TensorSpec], str | None],
    ) -> None:
        self._stages = tuple(stages)
        self._ledger = ledger
        self._nbytes = nbytes
        self._fault = fault
        self.result = stages[-1].after if stages else spec
        """What comes out of the last; what goes in if there is none."""

    def __len__(self) -> int:
        return len(self._stages)

    @property
    def may_pass_on(self) -> bool:
        """Whether they may return what they are given as it is: unless it has another length then, which is known."""
        after = self.result
        return after.shape == (-1,) or any(after.nbytes == stage.before.nbytes for stage in self._stages[:1])

    def encode(self, data: Any) -> Any:
        """Return what the last codec makes of a buffer.

        Raises:
            CodecError: one raised, or returned something its ``encoded_spec`` does not announce.
        """
        for stage in self._stages:
            before, started = self._nbytes(data), perf_counter()
            data = stage.run(stage.encode, data, "encode")
            self._check(data, stage.after, stage.place, "encode")
            self._ledger.stage_in(stage.name, before, self._nbytes(data), perf_counter() - started)
        return data

    def decode(self, data: Any) -> Any:
        """Return what the first codec was given.

        Raises:
            CodecError: one raised, or returned something of another shape or dtype than went in.
        """
        for stage in reversed(self._stages):
            started = perf_counter()
            data = stage.run(stage.decode, data, "decode")
            self._check(data, stage.before, stage.place, "decode")
            self._ledger.stage_back(stage.name, perf_counter() - started)
        return data

    def _check(self, data: Any, spec: TensorSpec, place: str, verb: str) -> None:
        fault = self._fault(data, spec)
        if fault is not None:
            raise CodecError(f"{place}: {verb} returned {fault}")


def host_stages(codecs: Sequence[Codec], spec: TensorSpec, places: Sequence[str], ledger: Ledger) -> Stages:
    """Return codecs that run on arrays.

    Args:
        codecs: of a plan; those that no kernel has run.
        spec: of the arrays.
        places: a name for each codec in messages.
        ledger: where they are counted.
    """
    stages: list[Stage] = []
    for codec, place in zip(codecs, places, strict=True):
        after = codec.encoded_spec(spec)
        stages.append(Stage(codec.name, place, spec, after, codec.encode, codec.decode, (spec,)))
        spec = after
    return Stages(stages, spec, ledger, _array_nbytes, _array_fault)


def device_stages(
    backend: Backend[Any], codecs: Sequence[Codec], spec: TensorSpec, places: Sequence[str], ledger: Ledger
) -> Stages:
    """Return as many codecs, from the first on, as the backend has kernels for where the tensor is.

    Args:
        backend: the framework's adapter.
        codecs: all codecs of the plan.
        spec: of the dense elements.
        places: a name for each codec in messages.
        ledger: where they are counted.
    """
    stages: list[Stage] = []
    kernels = backend.kernels
    if kernels is not None:
        for codec, place in zip(codecs, places, strict=True):
            kernel = kernels.kernel(codec, spec)
            if kernel is None:
                break
            after = codec.encoded_spec(spec)
            stages.append(Stage(codec.name, place, spec, after, kernel.encode, kernel.decode))
            spec = after
    return Stages(stages, spec, ledger, backend.nbytes, lambda data, spec: _tensor_fault(backend, data, spec))


def stage_places(codecs: Sequence[Codec], store: object, spec: TensorSpec) -> tuple[str, ...]:
    """Return what messages call each codec of a plan, and the store behind them."""
    stages: tuple[Any, ...] = (*codecs, store)
    return tuple(f"stage {i} of {len(stages)} ({stage!r}), tensor {spec}" for i, stage in enumerate(stages, start=1))


_array_nbytes: Callable[[Any], int] = attrgetter("nbytes")


def _array_fault(data: Any, spec: TensorSpec) -> str | None:
    if not isinstance(data, np.ndarray) or not data.flags.c_contiguous:
        return f"{type(data).__name__}, expected a C-contiguous NumPy array"
    # NumPy works out a name each time it is asked for one.
    if data.dtype == _dtype(spec.dtype) and (data.shape == spec.shape or _fits(data.shape, spec)):
        return None
    expected = "1-d" if spec.shape == (-1,) else str(spec.shape)
    return f"{data.dtype.name}{data.shape}, expected {spec.carrier} of shape {expected}"


@cache
def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(DTYPES[name].carrier)


def _tensor_fault(backend: Backend[Any], data: Any, spec: TensorSpec) -> str | None:
    if not backend.owns(data):
        return f"{type(data).__name__}, expected a tensor"
    got = backend.spec(data)
    is_contiguous = got.strides == contiguous_strides(got.shape)
    if _fits(got.shape, spec) and got.dtype == spec.dtype and got.device == spec.device and is_contiguous:
        return None
    shape = "one dimension" if spec.shape == (-1,) else f"shape {spec.shape}"
    return f"{got} with strides {got.strides}, expected {spec.dtype} of {shape} on {spec.device}, contiguous"


def _fits(shape: tuple[int, ...], spec: TensorSpec) -> bool:
    return len(shape) == 1 if spec.shape == (-1,) else shape == spec.shape
