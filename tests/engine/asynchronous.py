"""Simulated accelerators that do their work in their own time.

Inside `asynchronous` work waits in its stream until a schedule lets the device come to it: within a stream in order of
submission, across streams in any order that events allow. Whatever a real device might do can be played through that
way, deterministically, on one thread or several. Freed memory is then handed out again at once to the stream that it
was allocated for, as the allocators of PyTorch and Paddle do, and overwritten there: whoever still uses it without an
order between them sees it change.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary, finalize

import numpy as np

from tensorstash.reference import Tensor
from tensorstash.reference.autograd.primitive import Primitive
from tensorstash.reference.storage.dtypes import Array, DType
from tensorstash.reference.storage.memory import MemorySpace, Storage, adopt_array, memory
from tensorstash.reference.storage.streams import Driver, Event, Stream, Work, current_stream, driven_by
from tensorstash.testing.harness import collector_off

_OVERWRITTEN = 0xCD


class Schedule(Protocol):
    """Chooses the next work of the device. Asked under a lock, so it needs none of its own."""

    def pauses(self) -> bool:
        """Whether the device leaves the rest of its work for later; asked after each step that nobody waits for."""

    def pick(self, streams: Sequence[Stream]) -> Stream:
        """Choose among the streams that have work they can do now; there is at least one."""


class Shuffled:
    """Any order of events, by chance; ``eagerness`` is the probability that the device goes on after a step."""

    def __init__(self, seed: int, eagerness: float = 0.5) -> None:
        self._random, self._eagerness = random.Random(seed), eagerness

    def pauses(self) -> bool:
        return self._random.random() >= self._eagerness

    def pick(self, streams: Sequence[Stream]) -> Stream:
        return self._random.choice(streams)


class Point(Event):
    """A point in the work of a stream, which the device comes to when it has done all before it."""

    __slots__ = ("_timeline", "is_reached")

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.is_reached = False

    def reach(self) -> None:
        self.is_reached = True

    def query(self) -> bool:
        self._timeline.advance()
        return self.is_reached or self._timeline.has_ended

    def synchronize(self) -> None:
        self._timeline.work_until(self.query)


class Timeline(Driver):
    """The work that streams have, in the order of a schedule, and the memory that is used again."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.has_ended = False
        self._queues: dict[Stream, deque[Work | Event]] = {}  # in the order in which they were first used
        self._lock = threading.RLock()
        # Blocks that can be handed out again, by the stream they were allocated for, and those that came back since.
        self._free: defaultdict[Stream, list[Array]] = defaultdict(list)
        self._returned: deque[tuple[Stream, Array, list[Point]]] = deque()
        self._users: WeakKeyDictionary[object, set[Stream]] = WeakKeyDictionary()  # of the memory of storages

    def submit(self, stream: Stream, work: Work | Event) -> None:
        with self._working():
            self._leave(stream, work)
            self.advance()

    def launch(
        self, operation: Primitive, operands: Sequence[Any], attributes: Any, space: MemorySpace, common: DType
    ) -> Tensor:
        """Have the device compute later; a run on zeros shows shape and type now."""
        sample, dtype = operation.compute([_zeros(x) for x in operands], operands, common, attributes)
        _, layout = adopt_array(sample, memory("cpu"))
        out = Tensor(Storage.allocate(sample.nbytes, space), layout, dtype)
        target = out.carriers()
        # Arrays, not tensors: work does not keep memory from being freed and used again, no more than on a device.
        values = [_values(x) for x in operands]
        signatures = [x.meta if isinstance(x, Tensor) else x for x in operands]

        def work() -> None:
            target[...] = operation.compute(values, signatures, common, attributes)[0]

        current_stream(space.name).submit(work)
        return out

    def record(self, stream: Stream) -> Event:
        point = Point(self)
        self.submit(stream, point.reach)
        return point

    def wait(self, stream: Stream, event: Event) -> None:
        self.submit(stream, event)

    def _leave(self, stream: Stream, work: Work | Event) -> None:
        """Submit without letting the device work meanwhile; for finalizers, which run in the middle of anything."""
        self._queues.setdefault(stream, deque()).append(work)

    def _runnable(self) -> list[Stream]:
        """Return the streams that have work which does not wait for another stream."""
        found = []
        for stream, queue in list(self._queues.items()):
            while queue and isinstance(queue[0], Event) and getattr(queue[0], "is_reached", True):
                queue.popleft()
            if queue and not isinstance(queue[0], Event):
                found.append(stream)
        return found

    def _step(self, streams: Sequence[Stream]) -> None:
        work = self._queues[self._schedule.pick(streams)].popleft()
        assert not isinstance(work, Event), "a stream that waits"
        work()

    def advance(self) -> None:
        """Let the device work for as long as the schedule wants it to."""
        with self._working():
            while not self.has_ended and not self._schedule.pauses() and (streams := self._runnable()):
                self._step(streams)

    def work_until(self, is_done: Callable[[], bool]) -> None:
        """Let the device work until a condition holds."""
        with self._working():
            while not is_done():
                streams = self._runnable()
                assert streams, "somebody waits for work that waits for itself, or was never submitted"
                assert not self.has_ended, "somebody waits for work of a schedule that has ended"
                self._step(streams)

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Do the device's work, on this thread alone and in one go.

        No garbage is collected meanwhile: a finalizer that waits for the device would have it go on to its next piece
        of work in the middle of one. A real device works beside the program and has no such middle.
        """
        with self._lock, collector_off():
            yield

    def take(self, nbytes: int, stream: Stream) -> Array:
        """Return the block freed last of those of that size, else a new one."""
        with self._lock:
            for _ in range(len(self._returned)):
                owner, block, points = self._returned.popleft()
                if all(point.query() for point in points):
                    self._leave(owner, partial(block.fill, _OVERWRITTEN))
                    self._free[owner].append(block)
                else:
                    self._returned.append((owner, block, points))
            blocks = self._free[stream]
            place = next((n for n in reversed(range(len(blocks))) if blocks[n].nbytes == nbytes), None)
            block = np.empty(nbytes, np.uint8) if place is None else blocks.pop(place)
        return block

    def lend(self, block: Array, storage: object, stream: Stream) -> None:
        users = self._users[storage] = set()
        finalize(storage, self._give_back, block, stream, users).atexit = False

    def use_in(self, storage: object, stream: Stream) -> None:
        self._users.get(storage, set()).add(stream)

    def _give_back(self, block: Array, owner: Stream, users: set[Stream]) -> None:
        """Take a block back; its stream may overwrite it from now on, after the work so far of the other users."""
        if self.has_ended:
            return
        users.discard(owner)
        if not users:
            self._leave(owner, partial(block.fill, _OVERWRITTEN))
        points = [Point(self) for _ in users]
        for user, point in zip(users, points, strict=True):
            self._leave(user, point.reach)
        self._returned.append((owner, block, points))

    def finish(self) -> None:
        """Do all work there is."""
        self.work_until(lambda: not self._runnable())

    def end(self) -> None:
        """Forget the work that is left, and all memory."""
        with self._lock:
            self.has_ended = True
            for each in (self._queues, self._free, self._users):
                each.clear()
            self._returned.clear()


def _values(operand: Any) -> Array | None:
    """Return the stored elements of a tensor, those of host memory as they are now."""
    if not isinstance(operand, Tensor):
        return None
    return operand.carriers().copy() if operand.storage.space.is_host else operand.carriers()


def _zeros(operand: Any) -> Array | None:
    if not isinstance(operand, Tensor):
        return None
    layout = operand.layout
    raw = np.zeros(layout.end - layout.begin if operand.numel else 0, np.uint8)
    return np.ndarray(operand.shape, operand.dtype.carrier, raw, layout.offset - layout.begin, layout.byte_strides)


@contextmanager
def asynchronous(schedule: Schedule) -> Iterator[None]:
    """Let work of all simulated accelerators wait for a schedule until the block ends, which does the rest.

    Raises:
        RuntimeError: inside another such block.
    """
    timeline = Timeline(schedule)
    with driven_by(timeline):
        try:
            yield
            timeline.finish()
        finally:
            timeline.end()
