"""Streams of the simulated accelerators: work that the host submits and the device does in its own time.

By default a device does each piece of work at once, when it is submitted. Inside `asynchronous` work waits in its
stream until a schedule lets the device come to it: within a stream in order of submission, across streams in any order
that events allow. Whatever a real device might do can be played through that way, deterministically, on one thread or
several. Freed memory is then handed out again at once to the stream that it was allocated for, as the allocators of
PyTorch and Paddle do, and overwritten there: whoever still uses it without an order between them sees it change.
"""

from __future__ import annotations

import gc
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Protocol

Work = Callable[[], None]


class Schedule(Protocol):
    """Chooses the next work of the device. Asked under a lock, so it needs none of its own."""

    def pauses(self) -> bool:
        """Whether the device leaves the rest of its work for later; asked after each step that nobody waits for."""

    def pick(self, streams: Sequence[Stream]) -> Stream:
        """Choose among the streams that have work they can do now; there is at least one."""


class Event:
    """A point in the work of a stream."""

    __slots__ = ("__weakref__", "_is_reached")

    def __init__(self) -> None:
        self._is_reached = False

    def reach(self) -> None:
        """Have the device come to it, as streams do."""
        self._is_reached = True

    def query(self) -> bool:
        """Whether the device has come to it."""
        _timeline.advance()
        return self._is_reached or _timeline.schedule is None

    def synchronize(self) -> None:
        """Wait until the device has come to it."""
        _timeline.work_until(self.query)


class Stream:
    """A queue of work of one device. Thread-safe.

    Args:
        device: name of the device.
        name: in schedules.
    """

    __slots__ = ("device", "name", "queue", "serial")

    def __init__(self, device: str, name: str = "side") -> None:
        self.device = device
        self.name = name
        self.queue: deque[Work | Event] = deque()
        self.serial = next(_serials)

    def submit(self, work: Work) -> None:
        """Have the device do some work after all that has been submitted to this stream before."""
        if _timeline.schedule is None:
            work()
        else:
            _timeline.submit(self, work)

    def record(self) -> Event:
        """Return the point after all that has been submitted so far."""
        event = Event()
        self.submit(event.reach)
        return event

    def wait_event(self, event: Event, /) -> None:
        """Let later work begin only after ``event``."""
        if _timeline.schedule is not None:
            _timeline.submit(self, event)

    def synchronize(self) -> None:
        """Wait until all that has been submitted is done."""
        if _timeline.schedule is not None:
            self.record().synchronize()

    def can_work(self) -> bool:
        """Whether there is work that does not wait for another stream."""
        while self.queue and isinstance(head := self.queue[0], Event) and head._is_reached:
            self.queue.popleft()
        return bool(self.queue) and not isinstance(self.queue[0], Event)

    def step(self) -> None:
        """Do the next piece of work."""
        work = self.queue.popleft()
        assert not isinstance(work, Event), "a stream that waits"
        work()


class _Timeline:
    """The streams that have work, and the schedule that they follow."""

    def __init__(self) -> None:
        self.schedule: Schedule | None = None
        self.at_end: list[Callable[[], None]] = []
        self._busy: set[Stream] = set()
        self._lock = threading.RLock()

    def submit(self, stream: Stream, work: Work | Event) -> None:
        with self._working():
            self.leave(stream, work)
            self.advance()

    def leave(self, stream: Stream, work: Work | Event) -> None:
        """Submit without letting the device work meanwhile; for finalizers, which run in the middle of anything."""
        stream.queue.append(work)
        self._busy.add(stream)

    def runnable(self) -> list[Stream]:
        streams = sorted(self._busy, key=lambda stream: stream.serial)
        for stream in streams:
            if not stream.queue:
                self._busy.discard(stream)
                if stream.queue:  # left there meanwhile by a finalizer, perhaps on another thread
                    self._busy.add(stream)
        return [stream for stream in streams if stream.can_work()]

    def advance(self) -> None:
        """Let the device work for as long as the schedule wants it to."""
        with self._working():
            while self.schedule is not None and not self.schedule.pauses() and (streams := self.runnable()):
                self.schedule.pick(streams).step()

    def work_until(self, is_done: Callable[[], bool]) -> None:
        with self._working():
            while not is_done():
                streams = self.runnable()
                assert streams, "somebody waits for work that waits for itself, or was never submitted"
                assert self.schedule is not None, "somebody waits for work of a schedule that has ended"
                self.schedule.pick(streams).step()

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Do the device's work, on this thread alone and in one go.

        No garbage is collected meanwhile: a finalizer that waits for the device would have it go on to its next piece
        of work in the middle of one. A real device works beside the program and has no such middle.
        """
        with self._lock:
            was_enabled = gc.isenabled()
            gc.disable()
            try:
                yield
            finally:
                if was_enabled:
                    gc.enable()

    def finish(self) -> None:
        """Do all work there is."""
        self.work_until(lambda: not self.runnable())

    def end(self) -> None:
        """Forget the work that is left, and the schedule."""
        with self._lock:
            for stream in self._busy:
                stream.queue.clear()
            self._busy.clear()
            self.schedule = None
            for callback in self.at_end:
                callback()


_timeline = _Timeline()
_serials = count()


class _Current(threading.local):
    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}


_current = _Current()
_default: dict[str, Stream] = {}


def default_stream(device: str) -> Stream:
    """Return the stream that a device works in where no other is chosen; one for all threads."""
    stream = _default.get(device)
    return stream if stream is not None else _default.setdefault(device, Stream(device, "default"))


def current_stream(device: str) -> Stream:
    """Return the stream that this thread submits a device's work to."""
    stream = _current.streams.get(device)
    return stream if stream is not None else default_stream(device)


@contextmanager
def use_stream(stream: Stream) -> Iterator[None]:
    """Submit this thread's work on the stream's device to it until the block ends."""
    outer = _current.streams.get(stream.device)
    _current.streams[stream.device] = stream
    try:
        yield
    finally:
        if outer is None:
            del _current.streams[stream.device]
        else:
            _current.streams[stream.device] = outer


def leave_behind(stream: Stream, work: Work) -> None:
    """Submit work from a finalizer: the device does none of it now. Nothing happens where no schedule is in force."""
    if _timeline.schedule is not None:
        _timeline.leave(stream, work)


def at_end(callback: Callable[[], None]) -> None:
    """Call ``callback`` whenever a schedule ends."""
    _timeline.at_end.append(callback)


def is_asynchronous() -> bool:
    """Whether work waits for a schedule."""
    return _timeline.schedule is not None


@contextmanager
def asynchronous(schedule: Schedule) -> Iterator[None]:
    """Let work of all simulated accelerators wait for a schedule until the block ends, which does the rest.

    Raises:
        RuntimeError: inside another such block.
    """
    if _timeline.schedule is not None:
        raise RuntimeError("asynchronous() does not nest: one schedule is in force already")
    _timeline.schedule = schedule
    try:
        yield
        _timeline.finish()
    finally:
        _timeline.end()
