"""What the autograd graph holds in place of a saved tensor."""

from typing import Any, Protocol

from tensorstash.engine.ahead import ReadAhead
from tensorstash.engine.capture import modified_since
from tensorstash.engine.payload import Payload
from tensorstash.engine.stats import Ledger
from tensorstash.engine.tape import Tape
from tensorstash.protocols import Backend
from tensorstash.spec import TensorSpec


class Handle(Protocol):
    """What ``pack`` returns. The graph owns it; it owns its share of a slot."""

    def restore(self) -> Any:
        """Return the saved tensor; repeatable, from any thread."""
        ...


class Kept:
    """A tensor that stays as it is, with the version check that frameworks skip once hooks are set."""

    __slots__ = ("_alias", "_backend", "_ledger", "_version")

    def __init__(self, backend: Backend[Any], ledger: Ledger, alias: Any, version: int) -> None:
        self._backend = backend
        self._ledger = ledger
        self._alias = alias
        self._version = version

    def restore(self) -> Any:
        """Return the tensor.

        Raises:
            SavedTensorModifiedError: it was modified in place since it was saved.
        """
        if (error := modified_since(self._backend, self._alias, self._version)) is not None:
            raise error
        self._ledger.unpacked()
        return self._alias


class Stashed:
    """A tensor whose bytes are in a store, or on their way there.

    Several handles may share one payload, each with a layout of its own.
    """

    __slots__ = ("_ahead", "_backend", "_index", "_ledger", "_payload", "_spec", "_tape")

    def __init__(
        self,
        backend: Backend[Any],
        ledger: Ledger,
        ahead: ReadAhead,
        payload: Payload,
        tape: Tape,
        index: int,
        spec: TensorSpec,
    ) -> None:
        self._backend = backend
        self._ledger = ledger
        self._ahead = ahead
        self._payload = payload
        self._tape = tape
        self._index = index
        self._spec = spec

    def restore(self) -> Any:
        """Return the saved tensor: its source if the bytes have not left, else a fresh tensor.

        Raises:
            SavedTensorModifiedError: it was modified in place before its bytes were captured.
            StashError: the bytes could not be captured, loaded or decoded; the message names stage, codec and tensor.
        """
        self._ledger.unpacked()
        self._ahead.asked(self._tape, self._index)
        source = self._payload.capture.source
        if source is not None:
            self._ledger.forwarded()
            return self._forward(source)
        data = self._payload.load()
        return self._backend.from_host(data.reshape(self._spec.dense().shape), self._spec)

    def _forward(self, source: Any) -> Any:
        capture = self._payload.capture
        if self._spec == capture.spec and not self._backend.backward_writes:
            return source
        data = self._backend.to_host(source, capture.spec).wait()
        tensor = self._backend.from_host(data.reshape(self._spec.dense().shape), self._spec)
        capture.check(source)
        return tensor
