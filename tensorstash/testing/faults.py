"""Stores that fail, wait or count, and codecs that fail, on purpose."""

import errno
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import Any, ClassVar, Literal, get_args
from weakref import WeakSet

import numpy as np

from tensorstash.errors import CodecError, ConfigError, CorruptDataError, SlotGoneError, StoreFullError
from tensorstash.host.arrays import Array
from tensorstash.protocols import CodecKind, Slot, Store, StoreConfig, Tier
from tensorstash.registry import did_you_mean
from tensorstash.spec import TensorSpec
from tensorstash.stores.memory import Memory

PutFault = Literal["full", "put_error"]
GetFault = Literal["get_error", "gone", "corrupt", "short_read", "zeros"]
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

Behaviour = Callable[..., Any]
"""The replacement of a call; gets the real call and its arguments."""


class Intercepted:
    """A live store each of whose calls is made by ``run``: of a name, the method of ``inner``, and arguments.

    Checksums are left to the inner store, if it has its own and ``verifies``.
    """

    retains: ClassVar[bool]
    put: Callable[[Array], Slot]
    get: Callable[[Slot], Array]
    delete: Callable[[Slot], None]
    close: Callable[[], None]

    def __init__(self, inner: Store, run: Behaviour, *, verifies: bool = False) -> None:
        self.retains = inner.retains  # type: ignore[misc]
        self.verifies = verifies and getattr(inner, "verifies", False)
        for name in ("put", "get", "delete", "close"):
            setattr(self, name, partial(run, name, getattr(inner, name)))


@dataclass(frozen=True, kw_only=True)
class FaultyStore:
    """A store that fails at a chosen record.

    Args:
        fault: one of these:
            ``full`` and ``put_error`` (an :class:`OSError` that does not pass) at a put;
            ``get_error`` (an :class:`OSError`), ``gone``, ``corrupt``, ``short_read`` (one byte is missing) and
            ``zeros`` (altered bytes without a word, as from a device) at a get.
        at: the record that is hit, counted from 1 in each open store, puts and gets apart.
        inner: the store that holds the payloads.

    Raises:
        ConfigError: an unknown fault.

    >>> store = FaultyStore(fault="zeros", at=2).open()
    >>> slot = store.put(np.ones(3, np.uint8))
    >>> [store.get(slot).tolist() for _ in range(3)]
    [[1, 1, 1], [0, 0, 0], [1, 1, 1]]
    """

    name: ClassVar[str] = "faulty_store"
    tier: ClassVar[Tier] = "memory"
    fault: StoreFault
    at: int = 1
    inner: StoreConfig = field(default_factory=Memory)

    def __post_init__(self) -> None:
        _require_one_of(self.fault, get_args(StoreFault), path="faulty_store.fault")

    def open(self) -> Store:
        """Open the inner store; the caller closes it."""
        hit, calls = "put" if self.fault in get_args(PutFault) else "get", count(1)

        def run(name: str, call: Behaviour, *arguments: Any) -> Any:
            if name != hit or next(calls) != self.at:
                return call(*arguments)
            if self.fault in _ALTERED:
                return _ALTERED[self.fault](call(*arguments))
            raise _RAISED.get(self.fault, partial(OSError, errno.ENODEV))(f"injected by {self!r}")

        return Intercepted(self.inner.open(), run)


_RAISED: Mapping[str, Callable[[str], Exception]] = MappingProxyType(
    {"full": StoreFullError, "gone": SlotGoneError, "corrupt": CorruptDataError}
)
_ALTERED: Mapping[str, Callable[[Array], Array]] = MappingProxyType(
    {"short_read": lambda data: data[:-1], "zeros": np.zeros_like}
)


class Watched:
    """A store that counts its records, and that can hold them back as a slow device does. Thread-safe.

    Args:
        held_s: how long a put waits for :meth:`let_go` before it raises a :class:`TimeoutError`, in seconds; None: not
            at all.

    >>> watched = Watched()
    >>> store = watched.open()
    >>> slot = store.put(np.zeros(3, np.uint8))
    >>> watched.puts, watched.live, watched.live_bytes
    (1, 1, 3)
    >>> store.delete(slot)
    >>> watched.puts, watched.live, watched.live_bytes, watched.peak_bytes
    (1, 0, 0, 3)
    """

    name: ClassVar[str] = "watched"
    tier: ClassVar[Tier] = "memory"

    def __init__(self, *, held_s: float | None = None) -> None:
        self._held_s = held_s
        self._let_go = threading.Event()
        self._lock = threading.RLock()
        self._sizes: dict[tuple[int, Slot], int] = {}
        self._open: WeakSet[Store] = WeakSet()
        self.puts = 0
        """Payloads put so far."""
        self.peak_bytes = 0
        """Largest :attr:`live_bytes` so far."""

    @property
    def live(self) -> int:
        """Payloads that have been put and not deleted."""
        return len(self._sizes)

    @property
    def live_bytes(self) -> int:
        """Their bytes."""
        return sum(self._sizes.copy().values())

    @property
    def open_stores(self) -> int:
        """Stores that have been opened, and neither closed nor forgotten."""
        return len(self._open)

    def let_go(self) -> None:
        """Hold no put back from now on; idempotent."""
        self._let_go.set()

    def open(self) -> Store:
        """Open a store in memory; the caller closes it."""
        store = Memory().open()
        self._open.add(store)
        return Intercepted(store, self._run)

    def _run(self, name: str, call: Any, *arguments: Any) -> Any:
        """Call, and count; takes no lock for what finalizers call."""
        store: Store = call.__self__
        nbytes = arguments[0].nbytes if name == "put" else 0  # before the store has it, which may let it go
        if name == "put" and self._held_s is not None and not self._let_go.wait(self._held_s):
            raise TimeoutError(f"a put has been held back for {self._held_s} seconds")
        given = call(*arguments)
        if name == "delete":
            self._sizes.pop((id(store), *arguments), None)
        elif name == "close":
            self._open.discard(store)
        elif name == "put":
            with self._lock:
                self.puts += 1
                self._sizes[id(store), given] = nbytes
                self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return given


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
