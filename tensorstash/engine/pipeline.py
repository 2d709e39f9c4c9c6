"""One plan for one kind of tensor, run both ways: codecs in order and into the store, and back."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from tensorstash.buffers import Array, as_bytes, is_private
from tensorstash.engine.stats import Ledger
from tensorstash.errors import CodecError, StashError, StoreError
from tensorstash.plan import Plan
from tensorstash.protocols import Codec, Slot, Store, StoreConfig
from tensorstash.spec import TensorSpec


class Pipeline:
    """Encodes dense payloads of one spec into one store, and decodes them. Thread-safe, holds no payload.

    Args:
        plan: codecs to run; its store is ``config``, or memory where the plan names none.
        spec: the tensor's spec; payloads have ``spec.dense()``.
        config: what ``store`` was opened from.
        store: the live store.
        ledger: where stages are counted.
    """

    __slots__ = ("_ledger", "_places", "_steps", "is_costly", "plan", "result", "spec", "store", "store_place", "tier")

    def __init__(self, plan: Plan, spec: TensorSpec, config: StoreConfig, store: Store, ledger: Ledger) -> None:
        self.plan = plan
        self.spec = spec.dense()
        self.store = store
        self.tier = config.tier
        self.is_costly = bool(plan.codecs) or not store.retains
        self._ledger = ledger
        steps: list[tuple[Codec, TensorSpec]] = []
        current = self.spec
        for codec in plan.codecs:
            steps.append((codec, current))
            current = codec.encoded_spec(current)
        self._steps = tuple(steps)
        self.result = current
        stages = len(steps) + 1
        self._places = tuple(
            f"stage {i} of {stages} ({codec!r}), tensor {spec}" for i, (codec, _) in enumerate(steps, start=1)
        )
        self.store_place = f"stage {stages} of {stages} ({config!r}), tensor {spec}"

    def encode(self, data: Array) -> tuple[Slot, int]:
        """Run the codecs and put the result into the store.

        Args:
            data: elements in memory order; borrowed (read-only) or private (writable).

        Returns:
            The slot and the bytes in it.

        Raises:
            CodecError: a codec raised, or returned something its ``encoded_spec`` does not announce.
            StoreError: the store could not take the payload.
        """
        for (codec, spec), place in zip(self._steps, self._places, strict=True):
            before, started = data.nbytes, perf_counter()
            data = _run(codec.encode, data, spec, place, "encode")
            _check(data, codec.encoded_spec(spec), place, "encode")
            self._ledger.stage_in(codec.name, before, data.nbytes, perf_counter() - started)
        started = perf_counter()
        payload = as_bytes(data)
        if self.store.retains and not is_private(payload):
            payload = payload.copy()
        slot = self._ask_store(self.store.put, payload)
        self._ledger.stage_in(self.tier, payload.nbytes, payload.nbytes, perf_counter() - started)
        return slot, payload.nbytes

    def decode(self, slot: Slot) -> Array:
        """Return the elements again, in memory order; writable if the array is private to the caller.

        Raises:
            CodecError: a codec raised, or returned something of another shape or dtype than went in.
            StoreError: the store could not give the payload back.
        """
        started = perf_counter()
        data: Array = self._ask_store(self.store.get, slot)
        data = _shaped(data, self.result, self.store_place)
        self._ledger.stage_back(self.tier, perf_counter() - started)
        for (codec, spec), place in zip(reversed(self._steps), reversed(self._places), strict=True):
            started = perf_counter()
            data = _run(codec.decode, data, spec, place, "decode")
            _check(data, spec, place, "decode")
            self._ledger.stage_back(codec.name, perf_counter() - started)
        return data

    def _ask_store(self, method: Callable[[Any], Any], argument: object) -> Any:
        try:
            return method(argument)
        except StashError as error:
            raise error.at(self.store_place) from error
        except Exception as error:
            raise StoreError(f"{self.store_place}: {type(error).__name__}: {error}") from error


def _run(method: Callable[[Array, TensorSpec], Array], data: Array, spec: TensorSpec, place: str, verb: str) -> Array:
    try:
        return method(data, spec)
    except StashError as error:
        raise error.at(place) from error
    except Exception as error:
        raise CodecError(f"{place}: {verb} raised {type(error).__name__}: {error}") from error


def _check(data: object, spec: TensorSpec, place: str, verb: str) -> None:
    if not isinstance(data, np.ndarray) or not data.flags.c_contiguous:
        raise CodecError(f"{place}: {verb} returned {type(data).__name__}, expected a C-contiguous NumPy array")
    expected = "1-d" if spec.shape == (-1,) else str(spec.shape)
    shape_fits = data.ndim == 1 if spec.shape == (-1,) else data.shape == spec.shape
    if not shape_fits or data.dtype.name != spec.carrier:
        raise CodecError(
            f"{place}: {verb} returned {data.dtype.name}{data.shape}, expected {spec.carrier} of shape {expected}"
        )


def _shaped(data: Array, spec: TensorSpec, place: str) -> Array:
    if spec.shape == (-1,):
        return data
    if data.nbytes != spec.nbytes:
        raise StoreError(f"{place}: got {data.nbytes} bytes back, expected {spec.nbytes}")
    return data.view(spec.carrier).reshape(spec.shape)
