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
    """One codec or its kernel, for buffers of one spec; ``given`` are further arguments of both methods."""

    label: str
    before: TensorSpec
    after: TensorSpec
    encode: Run
    decode: Run
    given: tuple[TensorSpec, ...]
    numbers: Numbers
    fault: Callable[[Any, TensorSpec], str | None]

    def run(self, verb: str, method: Run, data: Any, expected: TensorSpec) -> Any:
        """Return the result of a method for a buffer, which must be of a spec; an error names the stage."""
        try:
            made = method(data, *self.given)
        except StashError as error:
            raise error.at(self.label) from error
        except Exception as error:
            if is_out_of_memory(error):
                error.add_note(f"in {verb} of {self.label}")
                raise
            raise CodecError(f"{self.label}: {verb} raised {type(error).__name__}: {error}") from error
        fault = self.fault(made, expected)
        if fault is not None:
            raise CodecError(f"{self.label}: {verb} returned {fault}")
        return made


class Stages:
    """Successive codecs of a plan that run in one place. Thread-safe, holds no payload.

    The kernels of a ``backend`` run as many codecs as they can, from the first on; without one all run on arrays.
    """

    def __init__(
        self,
        codecs: Sequence[Codec],
        spec: TensorSpec,
        labels: Sequence[str],
        ledger: Ledger,
        backend: Backend[Any] | None = None,
    ) -> None:
        self._ledger, self._stages = ledger, list[Stage]()
        kernels = None if backend is None else backend.kernels
        fault = _array_fault if backend is None else partial(_tensor_fault, backend)
        self._nbytes: Callable[[Any], int] = attrgetter("nbytes") if backend is None else backend.nbytes
        for codec, label in zip(codecs, labels, strict=True):
            after, numbers = codec.encoded_spec(spec), ledger.stages[codec.name]
            if backend is None:
                stage = Stage(label, spec, after, codec.encode, codec.decode, (spec,), numbers, fault)
            else:
                kernel = None if kernels is None else kernels.kernel(codec, spec)
                if kernel is None:
                    break
                stage = Stage(label, spec, after, kernel.encode, kernel.decode, (), numbers, fault)
            self._stages.append(stage)
            spec = after
        self.result = spec
        """Spec of the last stage's result; the given one if there is no stage."""

    def __len__(self) -> int:
        return len(self._stages)

    def encode(self, data: Any) -> Any:
        """Return the last codec's result for a buffer; a CodecError names the stage that failed."""
        for stage in self._stages:
            before, started = self._nbytes(data), perf_counter()
            data = stage.run("encode", stage.encode, data, stage.after)
            self._ledger.add(stage.numbers, 1, before, self._nbytes(data), perf_counter() - started)
        return data

    def decode(self, data: Any) -> Any:
        """Return the buffer that the first codec was given; a CodecError names the stage that failed."""
        for stage in reversed(self._stages):
            started = perf_counter()
            data = stage.run("decode", stage.decode, data, stage.before)
            self._ledger.add(stage.numbers, 0, 0, 0, 0.0, 1, perf_counter() - started)
        return data


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
