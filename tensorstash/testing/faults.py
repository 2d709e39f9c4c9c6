"""Stores that fail, wait or count, and codecs that fail, on purpose."""

import errno
import threading
from dataclasses import dataclass, field
from itertools import count
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
    ``zeros`` return altered bytes without a word, as a device does; the reader has to notice.

    Args:
        fault: one of these:
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


class Passing:
    """A live store that passes everything on to another."""

    retains: ClassVar[bool] = True

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    def put(self, data: Array, /) -> Slot:
        """Store the bytes."""
        return self._inner.put(data)

    def get(self, slot: Slot, /) -> Array:
        """Return the bytes that were put."""
        return self._inner.get(slot)

    def delete(self, slot: Slot, /) -> None:
        """Free the slot; idempotent, never blocks."""
        self._inner.delete(slot)

    def close(self) -> None:
        """Close the inner store; idempotent."""
        self._inner.close()


class _FaultyStore(Passing):
    def __init__(self, config: FaultyStore, inner: Store) -> None:
        super().__init__(inner)
        self._config = config
        self._puts, self._gets = count(1), count(1)

    def put(self, data: Array, /) -> Slot:
        record, fault = next(self._puts), self._config.fault
        if fault in get_args(PutFault) and self._is_hit(record):
            if fault == "full":
                raise StoreFullError(f"{self._config!r}: no room for record {record} of {data.nbytes} bytes")
            raise OSError(errno.ENODEV, f"injected at put {record}")
        return super().put(data)

    def get(self, slot: Slot, /) -> Array:
        record, fault = next(self._gets), self._config.fault
        data = super().get(slot)
        if fault not in get_args(GetFault) or not self._is_hit(record):
            return data
        if fault == "get_error":
            raise OSError(errno.ENODEV, f"injected at get {record}")
        if fault == "gone":
            raise SlotGoneError(f"{self._config!r}: record {record} is gone")
        if fault == "corrupt":
            raise CorruptDataError(f"{self._config!r}: the checksum of record {record} does not match")
        return _altered(data, fault)

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
        gate: holds the puts back; two configurations are equal only if they share it.
        inner: the store that holds the payloads.
    """

    name: ClassVar[str] = "gated"
    tier: ClassVar[Tier] = "memory"
    gate: Gate
    inner: StoreConfig = field(default_factory=Memory)

    def open(self) -> Store:
        """Open the inner store; the caller closes it."""
        return _GatedStore(self.gate, self.inner.open())


class _GatedStore(Passing):
    def __init__(self, gate: Gate, inner: Store) -> None:
        super().__init__(inner)
        self._gate = gate

    def put(self, data: Array, /) -> Slot:
        self._gate.wait()
        return super().put(data)


class Tap:
    """Counts the records that go in and out of every store that was opened with it. Thread-safe.

    >>> import numpy as np
    >>> tap = Tap()
    >>> store = Watched(tap=tap).open()
    >>> slot = store.put(np.zeros(3, np.uint8))
    >>> tap.puts, tap.live, tap.live_bytes
    (1, 1, 3)
    >>> store.delete(slot)
    >>> tap.puts, tap.live, tap.live_bytes, tap.peak_bytes
    (1, 0, 0, 3)
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._serials = count()
        self._sizes: dict[tuple[int, Slot], int] = {}
        self._open: set[int] = set()
        self.puts = 0
        """Payloads put so far."""
        self.gets = 0
        """Payloads read so far."""
        self.peak_bytes = 0
        """Largest :attr:`live_bytes` so far."""

    @property
    def live(self) -> int:
        """Payloads that have been put and not deleted."""
        return len(self._sizes)

    @property
    def live_bytes(self) -> int:
        """Their bytes."""
        return sum(list(self._sizes.values()))

    @property
    def open_stores(self) -> int:
        """Stores that have been opened, and neither closed nor forgotten."""
        return len(self._open)

    def opened(self) -> int:
        """Note that a store was opened, and return its serial number."""
        serial = next(self._serials)
        self._open.add(serial)
        return serial

    def put(self, serial: int, slot: Slot, nbytes: int) -> None:
        """Note a payload."""
        with self._lock:
            self.puts += 1
            self._sizes[serial, slot] = nbytes
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def got(self) -> None:
        """Note a read."""
        with self._lock:
            self.gets += 1

    def deleted(self, serial: int, slot: Slot) -> None:
        """Note a deletion; takes no lock, since finalizers call it."""
        self._sizes.pop((serial, slot), None)

    def closed(self, serial: int) -> None:
        """Note that a store is closed; takes no lock, since finalizers call it."""
        self._open.discard(serial)


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A store whose traffic a tap counts.

    Args:
        inner: the store that holds the payloads.
        tap: the counter; two configurations are equal only if they share it.
    """

    name: ClassVar[str] = "watched"
    tier: ClassVar[Tier] = "memory"
    inner: StoreConfig = field(default_factory=Memory)
    tap: Tap = field(default_factory=Tap)

    def open(self) -> Store:
        """Open the inner store; the caller closes it."""
        return _WatchedStore(self.tap, self.inner.open())


class _WatchedStore(Passing):
    def __init__(self, tap: Tap, inner: Store) -> None:
        super().__init__(inner)
        self._tap = tap
        self._serial = tap.opened()

    def put(self, data: Array, /) -> Slot:
        nbytes = data.nbytes
        slot = super().put(data)
        self._tap.put(self._serial, slot, nbytes)
        return slot

    def get(self, slot: Slot, /) -> Array:
        self._tap.got()
        return super().get(slot)

    def delete(self, slot: Slot, /) -> None:
        super().delete(slot)
        self._tap.deleted(self._serial, slot)

    def close(self) -> None:
        super().close()
        self._tap.closed(self._serial)

    def __del__(self) -> None:
        self._tap.closed(self._serial)


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
        fault: the failure, and its direction: an :class:`ArithmeticError`, an array of another dtype, of
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
