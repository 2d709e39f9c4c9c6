"""A step that keeps everything: what is held, and what the process takes, from one hook to the next."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from benchmarks.harness.runner import ROOT
from benchmarks.models import Model, build
from tensorstash.abilities import SupportsMemory
from tensorstash.backends import backend_named
from tensorstash.cli import memory
from tensorstash.cli.bench_worker import Steps, measure
from tensorstash.cli.turns import Job
from tensorstash.engine.ledger import Ledger
from tensorstash.engine.planned.meter import Meter

THRESHOLD_BYTES = 64 << 10
"""Blocks of so many bytes leave the process as they are freed, so that what is resident is in use."""

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


def watch(model: Mapping[str, Any]) -> Steps:
    """Train a model, given by its fields, and return the moments of the last step: what is allocated once is there."""
    moments = Moments(model["framework"])
    found = yield from measure(build(Model(**model)), moments, steps=3)  # type: ignore[arg-type]
    return {**found, "moments": moments.found}


def job(model: Model) -> Job:
    """Return the process that does :func:`watch`."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    environment["MALLOC_MMAP_THRESHOLD_"] = str(THRESHOLD_BYTES)
    return Job("moments", "benchmarks.harness.moments:watch", {"model": asdict(model)}, environment, ROOT)
