"""What a plan does, stage by stage and back: codecs, on arrays or by kernels on tensors, and the store behind them."""

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from tensorstash.abilities import Backend
from tensorstash.engine.ledger import Runs
from tensorstash.errors import CodecError, CorruptDataError, StashError, StoreError
from tensorstash.host.arrays import Array, as_bytes, copied, is_private
from tensorstash.host.checksum import checksum
from tensorstash.protocols import Slot, Store, StoreConfig
from tensorstash.spec import DTYPES, TensorSpec, contiguous_strides

D = TypeVar("D", Array, "Stored")
R = TypeVar("R")
Run = Callable[..., Any]

_PASSING = frozenset({errno.EINTR, errno.EAGAIN, errno.EIO})
_MORE_ATTEMPTS = 2


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
            count_back(stage.runs, started)
        return data


class Stored:
    """Where a payload is; owns the slot, which is free when this is dropped.

    Args:
        store: where; None for what stays on its device, where the slot is the payload itself.
        slot: the store's own name for it.
        nbytes: bytes in the slot.
        digest: checksum of them, where the store does not verify what it gives back.
    """

    __slots__ = ("__weakref__", "digest", "nbytes", "slot", "store")

    def __init__(self, store: Store | None, slot: Slot, nbytes: int, digest: int | None = None) -> None:
        self.store = store
        self.slot = slot
        self.nbytes = nbytes
        self.digest = digest

    def __del__(self) -> None:
        if self.store is not None:
            self.store.delete(self.slot)


class Pipeline:
    """What of a plan runs on the host: codecs in order and into the store, and back. Thread-safe.

    Args:
        stages: codecs to run here.
        config: what ``store`` was opened from.
        store: the live store.
        runs: where the store is counted.
        store_place: what messages call the store.
    """

    __slots__ = (
        "_declines",
        "_has_stages",
        "_trusts_store",
        "is_costly",
        "runs",
        "stages",
        "store",
        "store_place",
        "tier",
    )

    def __init__(self, stages: Stages, config: StoreConfig, store: Store, runs: Runs, store_place: str) -> None:
        self.stages = stages
        self._has_stages = bool(stages)
        self.store = store
        self.store_place = store_place
        self.tier = config.tier
        self._trusts_store = getattr(store, "verifies", False)
        self.is_costly = bool(stages) or config.tier != "memory"
        """Whether it takes longer to decode than a copy does."""
        self.runs = runs
        self._declines = bool(stages) and stages.may_pass_on and store.retains

    @property
    def looks_at_bytes(self) -> bool:
        """Whether a codec or the store needs the bytes themselves, and not just the memory that they arrive in."""
        return bool(self.stages) or not getattr(self.store, "takes_pending", False)

    def encode(self, data: Array) -> Stored | None:
        """Run the codecs and put the result into the store.

        Args:
            data: elements in memory order; borrowed (read-only) or private (writable).

        Returns:
            Where the payload is; None if the codecs have passed on borrowed elements as they are: the tensor can stay
            where it is, which is better than to hold the same bytes again.

        Raises:
            CodecError: a codec raised, or returned something its ``encoded_spec`` does not announce.
            StoreError: the store could not take the payload.
        """
        if self._has_stages:
            data = self.stages.encode(data)
        started = perf_counter()
        payload = as_bytes(data)
        if self._declines and not is_private(payload):
            return None
        return self.put(payload, started)

    def put(self, payload: Array, started: float | None = None) -> Stored:
        """Put bytes into the store on this thread, however long it takes.

        Args:
            payload: one-dimensional ``uint8``.
            started: when that began, if not now.

        Raises:
            StoreError: the store could not take the payload.
        """
        started = started or perf_counter()
        stored = self._answer(self._put, payload)
        self.runs.count_in(payload.nbytes, payload.nbytes, started)
        return stored

    def decode(self, stored: Stored) -> Array:
        """Return the elements again, in memory order; writable if the array is private to the caller.

        Args:
            stored: what :meth:`encode` returned.

        Raises:
            CodecError: a codec raised, or returned something of another shape or dtype than went in.
            StoreError: the store could not give the payload back.
        """
        started = perf_counter()
        data = self._answer(self._get, stored)
        result = self.stages.result
        if result.shape != (-1,):
            data = data.view(result.carrier).reshape(result.shape)
        count_back(self.runs, started)
        decoded: Array = self.stages.decode(data) if self._has_stages else data
        return decoded

    def _put(self, payload: Array) -> Stored:
        if self.store.retains and not is_private(payload):
            payload = copied(payload)
        digest = None if self._trusts_store else checksum(payload)
        return Stored(self.store, self.store.put(payload), payload.nbytes, digest)

    def _get(self, stored: Stored) -> Array:
        data: object = self.store.get(stored.slot)
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != (stored.nbytes,):
            got = f"{data.dtype.name}{data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
            raise CorruptDataError(f"the store gave back {got}, expected uint8({stored.nbytes},)")
        if stored.digest is not None and checksum(data) != stored.digest:
            raise CorruptDataError(f"{stored.nbytes} bytes came back altered")
        return data

    def _answer(self, question: Callable[[D], R], given: D) -> R:
        """Return the answer of the store; an error says where."""
        try:
            return _answered(question, given)
        except StashError as error:
            raise error.at(self.store_place) from error
        except Exception as error:
            raise StoreError(f"{self.store_place}: {type(error).__name__}: {error}") from error


def _answered(question: Callable[[D], R], given: D) -> R:
    """Return the answer of a store, which is asked again if its error may have been a passing one."""
    for _ in range(_MORE_ATTEMPTS):
        try:
            return question(given)
        except (OSError, StoreError) as error:
            if not _may_pass(error):
                raise
    return question(given)


def _may_pass(error: BaseException) -> bool:
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in _PASSING


def count_back(runs: Runs, started: float, loads: int = 1) -> None:
    """Count what was brought back since a moment of :func:`time.perf_counter`."""
    seconds = perf_counter() - started
    with runs.lock:
        runs.loads += loads
        runs.seconds_back += seconds


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
