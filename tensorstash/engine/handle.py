"""What the autograd graph holds in place of a saved tensor."""

from typing import Any, Protocol

from tensorstash.buffers import Array, borrowed
from tensorstash.engine.capture import modified
from tensorstash.engine.payload import Payload
from tensorstash.engine.state import SessionState
from tensorstash.engine.tape import Tape
from tensorstash.spec import TensorSpec


class Handle(Protocol):
    """What ``pack`` returns. The graph owns it; it owns its share of a slot."""

    def restore(self) -> Any:
        """Return the saved tensor; repeatable, from any thread."""
        ...


class Kept:
    """A tensor that stays as it is, with the version check that frameworks skip once hooks are set."""

    __slots__ = ("_alias", "_state", "_version")

    def __init__(self, state: SessionState, alias: Any, version: int) -> None:
        self._state = state
        self._alias = alias
        self._version = version

    def restore(self) -> Any:
        """Return the tensor.

        Raises:
            SavedTensorModifiedError: it was modified in place since it was saved.
        """
        state, alias = self._state, self._alias
        version = state.backend.version(alias)
        if version != self._version:
            raise modified(state.backend, alias, version, self._version)
        state.was_asked = True
        state.ledger.unpacked()
        return alias


class Stashed:
    """A tensor whose bytes are in a store, or on their way there.

    Several handles may share one payload, each with a layout of its own.
    """

    __slots__ = ("_payload", "_spec", "_state", "_tape")

    def __init__(self, state: SessionState, payload: Payload, tape: Tape, spec: TensorSpec) -> None:
        self._state = state
        self._payload = payload
        self._tape = tape
        self._spec = spec

    def restore(self) -> Any:
        """Return the saved tensor: its source if the bytes have not left, else a fresh tensor.

        Raises:
            SavedTensorModifiedError: it was modified in place before its bytes were captured.
            StashError: the bytes could not be captured, loaded or decoded; the message names stage, codec and tensor.
        """
        state = self._state
        state.was_asked = True
        state.ledger.unpacked()
        state.ahead.asked(self._tape, self._payload.index)
        source = self._payload.capture.source
        if source is not None:
            state.ledger.forwarded()
            return self._forward(source)
        return self._rebuild(self._payload.load())

    def _forward(self, source: Any) -> Any:
        capture, backend = self._payload.capture, self._state.backend
        if self._spec == capture.spec and not backend.backward_writes:
            return source
        tensor = self._rebuild(borrowed(backend.to_host(source, capture.spec).wait()))
        capture.check(source)
        return tensor

    def _rebuild(self, data: Array) -> Any:
        return self._state.backend.from_host(data.reshape(self._spec.dense().shape), self._spec)
