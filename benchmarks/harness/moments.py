"""A step that keeps everything: what is held, and what the process takes, from one hook to the next."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tensorstash.abilities import SupportsMemory
from tensorstash.backends import backend_named
from tensorstash.cli import memory
from tensorstash.engine.ledger import Ledger
from tensorstash.engine.planned.meter import Meter

MOMENTS = "moments"

Moment = tuple[int, int]
"""Between two hooks: the most bytes that are saved and held, and the most that are resident."""


class Moments:
    """Hooks that keep what they are given, and look at the process each time; what they saw since entered counts."""

    def __init__(self, framework: str) -> None:
        self._backend: Any = backend_named(framework)
        self._memory = self._backend.memory if isinstance(self._backend, SupportsMemory) else lambda tensor: tensor
        self._meter = Meter(Ledger(), self._memory)
        self._held = 0
        self.found: list[Moment] = []

    def __enter__(self) -> None:
        self.found.clear()
        self._hooks = self._backend.hooks(self._pack, self._unpack)
        self._hooks.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._hooks.__exit__(*raised)

    def _pack(self, tensor: Any) -> Any:
        with self._looking():
            backend, kept = self._backend, self._backend.alias(tensor)
            if backend.keep_reason(tensor) is None:
                (token, start), spec = backend.storage(tensor), backend.spec(tensor)
                self._meter.watch(self._memory(kept), token, (start, spec.order.block), spec.nbytes)
        return kept

    def _unpack(self, kept: Any) -> Any:
        with self._looking():
            return kept

    @contextmanager
    def _looking(self) -> Iterator[None]:
        self.found.append((self._held, memory.peak_bytes()))
        yield
        self._meter.settle()  # from now on bytes are only let go, so that these are the most until the next hook
        self._held = self._meter.held()
        memory.reset_peak()
