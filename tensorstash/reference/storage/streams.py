"""Streams of the simulated accelerators: work that the host submits, and that the device does at once.

Another driver may take its place for a block: whatever a real device might do, in its own time, can be played through
that way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tensorstash.reference.storage.dtypes import Array

Work = Callable[[], None]


class Event:
    """A point in the work of a stream; one that the device has come to, so that nobody waits."""

    __slots__ = ("__weakref__",)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class Stream:
    """A queue of work of one device. Thread-safe."""

    __slots__ = ("__weakref__", "device", "name")

    def __init__(self, device: str, name: str = "side") -> None:
        self.device = device
        self.name = name

    def submit(self, work: Work) -> None:
        driver().submit(self, work)

    def record(self) -> Event:
        return driver().record(self)

    def wait_event(self, event: Event, /) -> None:
        driver().wait(self, event)

    def synchronize(self) -> None:
        self.record().synchronize()


class Driver:
    """The work and the memory of all simulated accelerators: each piece of work is done when it is submitted."""

    launch: Callable[..., Any] | None = None
    """Has an operation computed later than it is asked for, and returns its result; None: each is computed at once."""

    def submit(self, stream: Stream, work: Work) -> None:
        """Have the device do some work after all that the stream has been given before."""
        work()

    def record(self, stream: Stream) -> Event:
        """Return the point after all that the stream has been given so far."""
        return Event()

    def wait(self, stream: Stream, event: Event) -> None:
        """Let later work of a stream begin only after an event."""

    def take(self, nbytes: int, stream: Stream) -> Array:
        """Return a block of memory for work in a stream."""
        return np.empty(nbytes, np.uint8)

    def lend(self, block: Array, storage: object, stream: Stream) -> None:
        """Let the stream use a block again once a storage has gone."""

    def use_in(self, storage: object, stream: Stream) -> None:
        """Let the block of a storage, once that has gone, wait for the work that another stream has by then."""


_current = threading.local()
_default = {device: Stream(device, "default") for device in ("sim:0", "sim:1")}
_drivers = [Driver()]


def driver() -> Driver:
    """Return the driver in force."""
    return _drivers[-1]


@contextmanager
def driven_by(other: Driver) -> Iterator[None]:
    """Let all simulated accelerators have another driver until the block ends; blocks do not nest."""
    if len(_drivers) > 1:
        raise RuntimeError("one driver is in force already, and they do not nest")
    _drivers.append(other)
    try:
        yield
    finally:
        _drivers.pop()


def default_stream(device: str) -> Stream:
    """Return the stream that a device works in where no other is chosen; one for all threads."""
    return _default[device]


def current_stream(device: str) -> Stream:
    """Return the stream that this thread submits a device's work to."""
    stream: Stream = getattr(_current, device, _default[device])
    return stream


@contextmanager
def use_stream(stream: Stream) -> Iterator[None]:
    """Submit this thread's work on the stream's device to it until the block ends."""
    outer = current_stream(stream.device)
    setattr(_current, stream.device, stream)
    try:
        yield
    finally:
        setattr(_current, stream.device, outer)
