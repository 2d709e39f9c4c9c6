"""The codecs of a plan for one kind of tensors, stage by stage and back: on the device by its kernels, or on arrays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from operator import attrgetter
from time import perf_counter
from typing import Any

import numpy as np

from tensorstash.abilities import Backend
from tensorstash.engine.ledger import Ledger, Runs
from tensorstash.errors import CodecError, StashError
from tensorstash.protocols import Codec
from tensorstash.spec import DTYPES, TensorSpec, contiguous_strides

Run = Callable[..., Any]
_array_nbytes: Callable[[Any], int] = attrgetter("nbytes")


@dataclass(frozen=True, slots=True)
class Stage:
    """One codec for one kind of buffer.

    Args:
        place: what messages call it.
        before: what goes in.
        after: what comes out.
        encode: makes one of the other.
        decode: makes it back.
        runs: where it is counted.
        fault: says what is wrong with a buffer that is to be of a spec, and what was expected; None if nothing is.
        given: what both take besides.
    """

    place: str
    before: TensorSpec
    after: TensorSpec
    encode: Run
    decode: Run
    runs: Runs
    fault: Callable[[Any, TensorSpec], str | None]
    given: tuple[TensorSpec, ...] = ()

    def run(self, verb: str, method: Run, data: Any, expected: TensorSpec) -> Any:
        """Return what a method makes of a buffer, which is to be of a spec; an error of it says where it was."""
        try:
            made = method(data, *self.given)
        except StashError as error:
            raise error.at(self.place) from error
        except Exception as error:
            raise CodecError(f"{self.place}: {verb} raised {type(error).__name__}: {error}") from error
        fault = self.fault(made, expected)
        if fault is not None:
            raise CodecError(f"{self.place}: {verb} returned {fault}")
        return made


class Stages:
    """Successive codecs of a plan that run in one place. Thread-safe, holds no payload.

    Args:
        stages: in the order of encoding.
        spec: what goes into the first.
        nbytes: says how large a buffer is.
    """

    __slots__ = ("_nbytes", "_stages", "result")

    def __init__(self, stages: Sequence[Stage], spec: TensorSpec, nbytes: Callable[[Any], int]) -> None:
        self._stages = tuple(stages)
        self._nbytes = nbytes
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
            data = stage.run("encode", stage.encode, data, stage.after)
            stage.runs.count_in(before, self._nbytes(data), started)
        return data

    def decode(self, data: Any) -> Any:
        """Return what the first codec was given.

        Raises:
            CodecError: one raised, or returned something of another shape or dtype than went in.
        """
        for stage in reversed(self._stages):
            started = perf_counter()
            data = stage.run("decode", stage.decode, data, stage.before)
            stage.runs.count_back(started)
        return data


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
        runs = ledger.stage(codec.name)
        stages.append(Stage(place, spec, after, codec.encode, codec.decode, runs, array_fault, (spec,)))
        spec = after
    return Stages(stages, spec, _array_nbytes)


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
    kernels, fault = backend.kernels, partial(tensor_fault, backend)
    if kernels is not None:
        for codec, place in zip(codecs, places, strict=True):
            kernel = kernels.kernel(codec, spec)
            if kernel is None:
                break
            after = codec.encoded_spec(spec)
            runs = ledger.stage(codec.name)
            stages.append(Stage(place, spec, after, kernel.encode, kernel.decode, runs, fault))
            spec = after
    return Stages(stages, spec, backend.nbytes)


def stage_places(codecs: Sequence[Codec], store: object, spec: TensorSpec) -> tuple[str, ...]:
    """Return what messages call each codec of a plan, and the store behind them."""
    stages: tuple[Any, ...] = (*codecs, store)
    return tuple(f"stage {i} of {len(stages)} ({stage!r}), tensor {spec}" for i, stage in enumerate(stages, start=1))


def array_fault(data: Any, spec: TensorSpec) -> str | None:
    """Return what a stage gave back and what was expected, if that is no array of a spec; else None."""
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


def tensor_fault(backend: Backend[Any], data: Any, spec: TensorSpec) -> str | None:
    """Return what a kernel gave back and what was expected, if that is no dense tensor of a spec; else None."""
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
