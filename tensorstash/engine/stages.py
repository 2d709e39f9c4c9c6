"""Codecs of a plan, one after the other: on arrays, or by kernels on tensors where these are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from operator import attrgetter
from time import perf_counter
from typing import Any

import numpy as np

from tensorstash.abilities import Backend
from tensorstash.engine.ledger import Ledger, Numbers
from tensorstash.errors import CodecError, StashError, is_out_of_memory
from tensorstash.protocols import Codec
from tensorstash.spec import DTYPES, TensorSpec, contiguous_strides

Run = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Stage:
    """One codec for one kind of buffer.

    Args:
        place: its name in messages.
        before: spec of the buffer that it encodes.
        after: spec of the encoded buffer.
        encode: of the codec or the kernel.
        decode: the way back.
        numbers: that count it.
        fault: returns the fault of a buffer that should be of a spec; None if it has none.
        given: further arguments of both.
    """

    place: str
    before: TensorSpec
    after: TensorSpec
    encode: Run
    decode: Run
    numbers: Numbers
    fault: Callable[[Any, TensorSpec], str | None]
    given: tuple[TensorSpec, ...] = ()

    def run(self, verb: str, method: Run, data: Any, expected: TensorSpec) -> Any:
        """Return the result of a method for a buffer, which must be of a spec; an error names the stage."""
        try:
            made = method(data, *self.given)
        except StashError as error:
            raise error.at(self.place) from error
        except Exception as error:
            if is_out_of_memory(error):
                error.add_note(f"in {verb} of {self.place}")
                raise
            raise CodecError(f"{self.place}: {verb} raised {type(error).__name__}: {error}") from error
        fault = self.fault(made, expected)
        if fault is not None:
            raise CodecError(f"{self.place}: {verb} returned {fault}")
        return made


class Stages:
    """Successive codecs of a plan that run in one place. Thread-safe, holds no payload.

    Args:
        stages: in the order of encoding.
        spec: of the buffer that the first one encodes.
        nbytes: returns the size of a buffer in bytes.
        ledger: counts them.
    """

    def __init__(self, stages: Sequence[Stage], spec: TensorSpec, nbytes: Callable[[Any], int], ledger: Ledger) -> None:
        self._stages, self._ledger = tuple(stages), ledger
        self._nbytes = nbytes
        self.result = stages[-1].after if stages else spec
        """Spec of the last stage's result; the given one if there is no stage."""

    def __len__(self) -> int:
        return len(self._stages)

    @property
    def may_pass_on(self) -> bool:
        """Whether they may return their input as it is: not if its length has to change."""
        after = self.result
        return after.shape == (-1,) or any(after.nbytes == stage.before.nbytes for stage in self._stages[:1])

    def encode(self, data: Any) -> Any:
        """Return the last codec's result for a buffer.

        Raises:
            CodecError: one raised, or returned something its ``encoded_spec`` does not announce.
        """
        for stage in self._stages:
            before, started = self._nbytes(data), perf_counter()
            data = stage.run("encode", stage.encode, data, stage.after)
            self._ledger.add(stage.numbers, 1, before, self._nbytes(data), perf_counter() - started)
        return data

    def decode(self, data: Any) -> Any:
        """Return the buffer that the first codec was given.

        Raises:
            CodecError: one raised, or returned something of another shape or dtype than went in.
        """
        for stage in reversed(self._stages):
            started = perf_counter()
            data = stage.run("decode", stage.decode, data, stage.before)
            self._ledger.add(stage.numbers, 0, 0, 0, 0.0, 1, perf_counter() - started)
        return data


def host_stages(codecs: Sequence[Codec], spec: TensorSpec, places: Sequence[str], ledger: Ledger) -> Stages:
    """Return codecs that run on arrays.

    Args:
        codecs: those of a plan that no kernel runs.
        spec: of the arrays.
        places: a name for each codec in messages.
        ledger: counts them.
    """
    stages: list[Stage] = []
    for codec, place in zip(codecs, places, strict=True):
        after = codec.encoded_spec(spec)
        numbers = ledger.stage(codec.name)
        stages.append(Stage(place, spec, after, codec.encode, codec.decode, numbers, _array_fault, (spec,)))
        spec = after
    return Stages(stages, spec, attrgetter("nbytes"), ledger)


def device_stages(
    backend: Backend[Any], codecs: Sequence[Codec], spec: TensorSpec, places: Sequence[str], ledger: Ledger
) -> Stages:
    """Return as many codecs, from the first on, as the backend has kernels for where the tensor is.

    Args:
        backend: the framework's adapter.
        codecs: all codecs of the plan.
        spec: of the dense elements.
        places: a name for each codec in messages.
        ledger: counts them.
    """
    stages: list[Stage] = []
    kernels, fault = backend.kernels, partial(_tensor_fault, backend)
    for codec, place in zip(codecs, places, strict=True):
        kernel = None if kernels is None else kernels.kernel(codec, spec)
        if kernel is None:
            break
        after = codec.encoded_spec(spec)
        stages.append(Stage(place, spec, after, kernel.encode, kernel.decode, ledger.stage(codec.name), fault))
        spec = after
    return Stages(stages, spec, backend.nbytes, ledger)


def _array_fault(data: Any, spec: TensorSpec) -> str | None:
    """Return the fault of a stage's result that should be an array of a spec; None if it is one."""
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
    """Return the fault of a kernel's result that should be a dense tensor of a spec; None if it is one."""
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
