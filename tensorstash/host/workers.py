"""Threads that work behind the computation, started when there is work and gone with their owner.

The futures and pools of the standard library guard their state with a condition, whose methods are Python: an interrupt
(Ctrl-C) between them leaves the lock taken, and the thread that does the work waits for it for ever. Here each change
of state is one operation of C, which no signal handler can divide.
"""

import math
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Generic, TypeVar

R = TypeVar("R")

_EXIT_S = 5.0


class Future(Generic[R]):
    """One piece of work and its outcome: exactly one end, by its result, an error, or being cancelled. Thread-safe.

    ``ended`` is called when there is an end, also one by cancelling or by losing the thread. It must not raise, and may
    be called twice where a thread is killed or given up.
    """

    __slots__ = ("_ended", "_ends", "_gates", "_work")

    def __init__(self, work: Callable[[], R], ended: Callable[[], object] | None = None) -> None:
        self._work = [work]  # who takes it out does it, or has cancelled it
        self._ended = ended
        self._ends: list[tuple[Any, BaseException | None]] = []  # the first counts
        self._gates: list[SimpleQueue[None]] = []

    def run(self) -> None:
        """Do the work, unless somebody does it or has cancelled it; an exception that ends the thread is raised."""
        try:
            work = self._work.pop()
        except IndexError:
            return
        try:
            result = work()
        except Exception as error:
            del work
            self.fail(error)
            del self  # the error refers to this frame, and must not refer to itself through the future
        except BaseException as ending:
            self.fail(RuntimeError(f"ended its thread by {ending!r}"))
            raise
        else:
            del work  # whoever sees the end may rely on it that the thread holds nothing any more
            self._end((result, None))

    def fail(self, error: BaseException) -> None:
        """Give it an error, unless it has its end already."""
        self._end((None, error))

    def cancel(self) -> bool:
        """End it before it has begun; return False if it has."""
        try:
            self._work.pop()
        except IndexError:
            return False
        self.fail(CancelledError())
        return True

    def done(self) -> bool:
        """Whether it has its end."""
        return bool(self._ends)

    def outcome(self, timeout_s: float | None = None) -> tuple[Any, BaseException | None]:
        """Wait for the end, or raise a TimeoutError; return its result and its error, or None for each."""
        if not self._ends:
            gate: SimpleQueue[None] = SimpleQueue()
            self._gates.append(gate)
            # The end may have come before anybody saw the gate.
            if not self._ends:
                with suppress(Empty):
                    gate.get(timeout=None if timeout_s is None else min(max(timeout_s, 0.0), threading.TIMEOUT_MAX))
            if not self._ends:
                raise TimeoutError
        return self._ends[0]

    def result(self, timeout_s: float | None = None) -> R:
        """Wait for the end, as :meth:`outcome` does, and return its result or raise its error."""
        result, error = self.outcome(timeout_s)
        if error is None:
            value: R = result
            return value
        try:
            raise error
        finally:
            del error, self  # the error refers to this frame

    def _end(self, end: tuple[Any, BaseException | None]) -> None:
        self._ends.append(end)
        del self._ends[1:], end
        # A later end does this again: the thread of the first may have been killed anywhere here.
        for gate in self._gates:
            gate.put(None)
        if (ended := self._ended) is not None:
            ended()
            self._ended = None


class Workers:
    """Runs functions in order of submission, on threads that do not have to answer. Thread-safe.

    Threads end when the last reference to this object goes, after all work submitted until then. At interpreter exit
    work that has not begun is dropped; running work has five seconds to end. A thread that has died is replaced, and
    so is one whose work takes longer than ``timeout_s``, as soon as there is other work; whoever waits for it gets a
    RuntimeError or a TimeoutError, and a late result is dropped.
    """

    __slots__ = ("__weakref__", "_pool", "timeout_s")

    def __init__(self, name: str, threads: int, *, timeout_s: float = math.inf) -> None:
        self.timeout_s = timeout_s
        self._pool = _ThreadPool(self, name, threads)

    def submit(self, work: Callable[[], R], *, ended: Callable[[], object] | None = None) -> Future[R]:
        """Run ``work`` once: later, or now where no thread can be started, such as while the interpreter exits."""
        job, pool = Future(work, ended), self._pool
        del work
        try:
            earliest = monotonic() - self.timeout_s
            for thread in pool.threads:
                if thread.job is not None and thread.since < earliest:
                    self.abandon()
                    break
            with pool._lock:
                is_served = not pool._is_stopped
                if is_served:
                    pool._todo.append(job)
                    if len(pool.threads) < pool._limit and not pool._has_hands():
                        pool._todo.pop()
                        is_served = False
            if is_served:
                pool._calls.put(None)
            else:
                job.run()
            return job
        except BaseException:  # an interrupt
            job.cancel()
            raise
        finally:
            del job  # its error may refer to this frame

    def abandon(self) -> None:
        """Give up work that takes longer than ``timeout_s``, and replace its threads."""
        pool, earliest = self._pool, monotonic() - self.timeout_s
        lost: list[Future[Any]] = []
        with pool._lock:
            for thread in list(pool.threads):
                if (job := thread.job) is not None and thread.since < earliest:
                    lost.append(job)
                    thread.is_abandoned = True
                    pool.remove(thread)
        for job in lost:
            job.fail(TimeoutError(f"took longer than {self.timeout_s} seconds"))


class _Thread(threading.Thread):
    """A thread, and its present work; a daemon, because the interpreter waits for all others for ever."""

    def __init__(self, pool: "_ThreadPool", name: str) -> None:
        super().__init__(target=pool.serve, args=(self,), name=name, daemon=True)
        self.job: Future[Any] | None = None
        self.since = 0.0
        self.is_abandoned = False


class _ThreadPool:
    """The threads of one process, and their work, until its owner goes.

    Nothing here takes the lock in a finalizer, which may run while the same thread holds it. An interrupt, which comes
    to the caller's thread alone, leaves at worst cancelled work in the queue, or a thread that was not started.
    """

    def __init__(self, owner: Workers, name: str, limit: int) -> None:
        self.threads: list[_Thread] = []
        self._name = name
        self._limit = limit
        self._lock = threading.Lock()
        self._todo: deque[Future[Any]] = deque()
        self._calls: SimpleQueue[object] = SimpleQueue()  # None: there is work; else a thread ends, and passes it on
        self._is_stopped = False
        self._owner = weakref.ref(owner, self._calls.put)
        weakref.finalize(self, _await_end, self._todo, self._calls, self.threads)

    def serve(self, thread: _Thread) -> None:
        """Do work until the thread has to end, and take note of that, also where it was killed."""
        call = None
        try:
            while call is None:
                call = self._calls.get()
                while (job := self._next(thread)) is not None:
                    job.run()
                    thread.job = job = None
                    if thread.is_abandoned:
                        return
            self._is_stopped = True
            self._calls.put(call)
        finally:
            with self._lock:
                if thread in self.threads:
                    self.remove(thread)
            if thread.job is not None:
                thread.job.fail(RuntimeError("ended with its thread, which was killed"))

    def _next(self, thread: _Thread) -> Future[Any] | None:
        with self._lock:
            if not self._todo:
                return None
            thread.since = monotonic()
            thread.job = self._todo[0]  # first: where the thread is killed, its job has an end
            self._todo.popleft()
            return thread.job

    def remove(self, thread: _Thread) -> None:
        """Let a thread go, and another one take its work."""
        self.threads.remove(thread)
        self._calls.put(None)  # it may have taken one with it
        self._has_hands()

    def _has_hands(self) -> bool:
        """Start a thread if there is more to do than idle ones; return False if none can be started."""
        idle = [thread.job for thread in self.threads].count(None)
        if len(self._todo) <= idle or len(self.threads) >= self._limit:
            return True
        thread = _Thread(self, f"{self._name}-{len(self.threads) + 1}")
        try:
            thread.start()
        except RuntimeError:
            return False
        self.threads.append(thread)  # last: one that an interrupt keeps from starting is none
        return True


def _await_end(todo: deque[Future[Any]], calls: SimpleQueue[object], threads: list[_Thread]) -> None:
    """At interpreter exit: let running work come to its end, for it may be inside a framework."""
    todo.clear()
    calls.put(calls)  # as if the owner were gone: idle threads end at once
    deadline = monotonic() + _EXIT_S
    for thread in list(threads):
        thread.join(max(0.0, deadline - monotonic()))
