"""Stores and codecs that fail on purpose."""

import errno
import threading
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

import numpy as np

from tensorstash.errors import CodecError, ConfigError, CorruptDataError, SlotGoneError, StoreFullError
from tensorstash.host.arrays import Array
from tensorstash.protocols import CodecKind, Slot, Store, StoreConfig, Tier
from tensorstash.registry import did_you_mean
from tensorstash.spec import TensorSpec
from tensorstash.stores.memory import Memory

PutFault = Literal["full", "put_error"]
GetFault = Literal["get_error", "gone", "corrupt", "short_read", "torn_record", "flipped_bit", "zeros"]
StoreFault = Literal[PutFault, GetFault]
CodecFault = Literal[
    "encode_error",
    "encode_wrong_dtype",
    "encode_wrong_size",
    "encode_no_array",
    "decode_error",
    "decode_wrong_dtype",
    "decode_wrong_size",
    "decode_no_array",
]


@dataclass(frozen=True, kw_only=True)
class FaultyStore:
    """A store that fails at chosen records.

    The records are counted from 1 in each open store, puts and gets apart. ``torn_record``, ``flipped_bit`` and
    ``zeros`` return altered bytes without a word, as a device does; what stands above the store has to notice.

    Args:
        fault: what goes wrong:
            ``full`` and ``put_error`` (an :class:`OSError` that does not pass) at a put;
            ``get_error`` (an :class:`OSError`), ``gone``, ``corrupt``, ``short_read`` (one byte is missing),
            ``torn_record`` (the second half is zero), ``flipped_bit`` and ``zeros`` at a get.
        at: the first record that is hit.
        times: how many records in a row are hit.
        inner: the store that holds the payloads.

    Raises:
        ConfigError: an unknown fault, or a number below 1.

    >>> store = FaultyStore(fault="flipped_bit", at=2).open()
    >>> slot = store.put(np.zeros(3, np.uint8))
    >>> store.get(slot), store.get(slot), store.get(slot)  # doctest: +NORMALIZE_WHITESPACE
    (array([0, 0, 0], dtype=uint8), array([0, 1, 0], dtype=uint8), array([0, 0, 0], dtype=uint8))
    """

    name: ClassVar[str] = "faulty_store"
    tier: ClassVar[Tier] = "memory"
    fault: StoreFault
    at: int = 1
    times: int = 1
    inner: StoreConfig = field(default_factory=Memory)

    def __post_init__(self) -> None:
        _require_one_of(self.fault, (*get_args(PutFault), *get_args(GetFault)), path="faulty_store.fault")
        for label, number in (("at", self.at), ("times", self.times)):
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise ConfigError(f"faulty_store.{label}: got {number}, expected a whole number, 1 or more")

    def open(self) -> Store:
        """Open the inner store; the caller closes it."""
        return _FaultyStore(self, self.inner.open())


class _FaultyStore:
    retains: ClassVar[bool] = True

    def __init__(self, config: FaultyStore, inner: Store) -> None:
        self._config = config
        self._inner = inner
        self._lock = threading.Lock()
        self._puts = 0
        self._gets = 0

    def put(self, data: Array, /) -> Slot:
        with self._lock:
            self._puts += 1
            record = self._puts
        fault = self._config.fault
        if fault in get_args(PutFault) and self._is_hit(record):
            if fault == "full":
                raise StoreFullError(f"{self._config!r}: no room for record {record} of {data.nbytes} bytes")
            raise OSError(errno.ENODEV, f"injected at put {record}")
        return self._inner.put(data)

    def get(self, slot: Slot, /) -> Array:
        with self._lock:
            self._gets += 1
            record = self._gets
        data = self._inner.get(slot)
        fault = self._config.fault
        if fault not in get_args(GetFault) or not self._is_hit(record):
            return data
        if fault == "get_error":
            raise OSError(errno.ENODEV, f"injected at get {record}")
        if fault == "gone":
            raise SlotGoneError(f"{self._config!r}: record {record} is gone")
        if fault == "corrupt":
            raise CorruptDataError(f"{self._config!r}: the checksum of record {record} does not match")
        return _altered(data, fault)

    def delete(self, slot: Slot, /) -> None:
        self._inner.delete(slot)

    def close(self) -> None:
        self._inner.close()

    def _is_hit(self, record: int) -> bool:
        return self._config.at <= record < self._config.at + self._config.times


class Gate:
    """Holds back every put of the stores opened with it until it is opened. Thread-safe.

    Args:
        timeout_s: how long a put waits before it gives up with a :class:`TimeoutError`, in seconds.
    """

    def __init__(self, timeout_s: float = 10.0) -> None:
        self._timeout_s = timeout_s
        self._opened = threading.Event()

    def open(self) -> None:
        """Let everything through from now on; idempotent."""
        self._opened.set()

    def wait(self) -> None:
        """Return when the gate is open.

        Raises:
            TimeoutError: nobody has opened it in time.
        """
        if not self._opened.wait(self._timeout_s):
            raise TimeoutError(f"the gate has not been opened for {self._timeout_s} seconds")


@dataclass(frozen=True, kw_only=True)
class Gated:
    """A store that takes payloads only once its gate is open, as a slow or hanging device does.

    Args:
        gate: what holds the puts back; two configurations are equal only if they share it.
        inner: the store that holds the payloads.
    """

    name: ClassVar[str] = "gated"
    tier: ClassVar[Tier] = "memory"
    gate: Gate
    inner: StoreConfig = field(default_factory=Memory)

    def open(self) -> Store:
        """Open the inner store; the caller closes it."""
        return _GatedStore(self.gate, self.inner.open())


class _GatedStore:
    retains: ClassVar[bool] = True

    def __init__(self, gate: Gate, inner: Store) -> None:
        self._gate = gate
        self._inner = inner

    def put(self, data: Array, /) -> Slot:
        self._gate.wait()
        return self._inner.put(data)

    def get(self, slot: Slot, /) -> Array:
        return self._inner.get(slot)

    def delete(self, slot: Slot, /) -> None:
        self._inner.delete(slot)

    def close(self) -> None:
        self._inner.close()


def _altered(data: Array, fault: str) -> Array:
    if fault == "short_read":
        return data[:-1]
    altered = data.copy()
    if fault == "torn_record":
        altered[data.size // 2 :] = 0
    elif fault == "flipped_bit":
        altered[data.size // 2] ^= 1
    else:
        altered[:] = 0
    return altered


@dataclass(frozen=True, kw_only=True)
class FaultyCodec:
    """A codec that passes buffers through, and fails at those of a chosen number of elements.

    Args:
        fault: what goes wrong, and in which direction: an :class:`ArithmeticError`, an array of another dtype, of
            one element too few, or no array at all.
        numel: elements of the buffers that are hit; None for all.

    Raises:
        ConfigError: an unknown fault.

    >>> codec = FaultyCodec(fault="decode_wrong_size", numel=4)
    >>> four = TensorSpec((4,), (1,), 0, "float32", "cpu")
    >>> codec.decode(codec.encode(np.ones(4, np.float32), four), four)
    array([1., 1., 1.], dtype=float32)
    """

    name: ClassVar[str] = "faulty_codec"
    lossless: ClassVar[bool] = True
    kind: ClassVar[CodecKind] = "array->array"
    fault: CodecFault
    numel: int | None = None

    def __post_init__(self) -> None:
        _require_one_of(self.fault, get_args(CodecFault), path="faulty_codec.fault")

    def accepts(self, spec: TensorSpec, /) -> bool:
        """Every array."""
        return spec.shape != (-1,)

    def encoded_spec(self, spec: TensorSpec, /) -> TensorSpec:
        """The same."""
        return spec

    def encode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return a copy, or fail."""
        return self._pass(data, spec, "encode")

    def decode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return a copy, or fail."""
        if (data.dtype.name, data.shape) != (spec.carrier, spec.shape):
            raise CodecError(f"{self!r}: got {data.dtype}{data.shape}, expected {spec.carrier}{spec.shape}")
        return self._pass(data, spec, "decode")

    def _pass(self, data: Array, spec: TensorSpec, direction: str) -> Array:
        verb, _, fault = self.fault.partition("_")
        if verb != direction or self.numel not in (None, spec.numel):
            return data.copy()
        if fault == "error":
            raise ArithmeticError(f"injected into {direction}")
        if fault == "wrong_dtype":
            return np.zeros(data.shape, "int8" if data.dtype != np.int8 else "int16")
        if fault == "wrong_size":
            return data.reshape(-1)[:-1].copy()
        no_array: Array = None  # type: ignore[assignment]
        return no_array


def _require_one_of(value: str, known: tuple[str, ...], *, path: str) -> None:
    if value not in known:
        raise ConfigError(f"{path}: got {value!r}; {did_you_mean(value, known)}")
