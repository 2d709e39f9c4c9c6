"""Threads that work behind the computation, started when there is work and gone with their owner."""

import math
import threading
import weakref
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic
from typing import Any, TypeVar

from tensorstash.host.futures import Future

R = TypeVar("R")

_EXIT_S = 5.0


class Workers:
    """Runs functions in order of submission, on threads that do not have to answer. Thread-safe.

    Threads start with the work that needs them and end when the last reference to this object goes, after all
    work submitted until then. At interpreter exit work that has not begun is dropped; running work has five seconds to
    end, so that a device that hangs keeps no process alive.

    A thread that has died is replaced, and so is one whose work takes longer than ``timeout_s``, as soon as there is
    other work; whoever waits for it gets a :class:`RuntimeError` or a :class:`TimeoutError`, and a late
    result is dropped.

    Args:
        name: prefix of the threads' names.
        threads: most of them at one time, but for those that are given up.
        timeout_s: longest time one piece of work may take, in seconds.

    >>> workers = Workers("doc", 1)
    >>> workers.submit(lambda: 6 * 7).result()
    42
    """

    __slots__ = ("__weakref__", "_pool", "timeout_s")

    def __init__(self, name: str, threads: int, *, timeout_s: float = math.inf) -> None:
        self.timeout_s = timeout_s
        self._pool = _ThreadPool(self, name, threads)

    def submit(self, work: Callable[[], R], *, ended: Callable[[], object] | None = None) -> Future[R]:
        """Run ``work`` once: later, or now where no thread can be started, such as while the interpreter exits.

        Work whose submission raises, which only an interrupt does, is not done unless it has begun. When it has come to
        an end, whatever that is, ``ended`` is called, which must not raise.
        """
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
        except BaseException:
            job.cancel()
            raise
        finally:
            del job  # its error may refer to this frame

    def abandon(self) -> None:
        """Give up work that takes longer than ``timeout_s``, and replace its threads."""
        self._pool.abandon(self.timeout_s)


class _Thread(threading.Thread):
    """A thread, and its present work.

    It is a daemon, because the interpreter waits for all others for ever.
    """

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
        self._calls: SimpleQueue[object] = SimpleQueue()
        """None where there is work; anything else ends a thread, which passes it on."""
        self._is_stopped = False
        self._owner = weakref.ref(owner, self._calls.put)
        weakref.finalize(self, _await_end, self._todo, self._calls, self.threads)

    def abandon(self, timeout_s: float) -> None:
        """Leave to themselves the threads whose work takes too long."""
        earliest = monotonic() - timeout_s
        lost: list[Future[Any]] = []
        with self._lock:
            for thread in list(self.threads):
                if (job := thread.job) is not None and thread.since < earliest:
                    lost.append(job)
                    thread.is_abandoned = True
                    self._remove(thread)
        for job in lost:
            job.fail(TimeoutError(f"took longer than {timeout_s} seconds"))

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
                    self._remove(thread)
            if thread.job is not None:
                thread.job.fail(RuntimeError("ended with its thread, which was killed"))

    def _next(self, thread: _Thread) -> Future[Any] | None:
        with self._lock:
            if not self._todo:
                return None
            thread.since = monotonic()
            thread.job = self._todo.popleft()
            return thread.job

    def _remove(self, thread: _Thread) -> None:
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
