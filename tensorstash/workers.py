"""Threads that work behind the computation, started when there is work and gone with their owner."""

import math
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from queue import SimpleQueue
from time import monotonic
from typing import Any, TypeVar

R = TypeVar("R")

_EXIT_S = 5.0


class Workers:
    """Runs functions in order of submission, on threads that do not have to answer. Thread-safe.

    Threads start with the work that needs them and end when the last reference to this object goes, after what was
    submitted until then. At interpreter exit work that has not begun is dropped; what is running has five seconds to
    end, so that a device that hangs keeps no process alive. A forked child, which inherits no threads, gets new ones.

    A thread that has died is replaced, and so is one whose work takes longer than ``patience_s``, as soon as there is
    other work; whoever waits for what it did gets a :class:`RuntimeError` or a :class:`TimeoutError`, and what it
    returns after all is dropped.

    Args:
        name: prefix of the threads' names.
        threads: most of them at one time, but for those that are given up; None for as many as there is work.
        patience_s: longest time one piece of work may take, in seconds.

    >>> workers = Workers("doc", 1)
    >>> workers.submit(lambda: 6 * 7).result()
    42
    """

    __slots__ = ("__weakref__", "_crew", "_name", "_patience_s", "_threads")

    def __init__(self, name: str, threads: int | None = None, *, patience_s: float = math.inf) -> None:
        self._name = name
        self._threads = sys.maxsize if threads is None else threads
        self._patience_s = patience_s
        self._start()

    def submit(self, work: Callable[[], R]) -> Future[R]:
        """Run ``work`` once: later, or now where no thread can be started, such as while the interpreter exits."""
        if self._crew.pid != os.getpid():
            self._start()
        job = _Job(work)
        try:
            if not self._crew.enlist(job):
                job.run()
            return job.future
        finally:
            del job  # its error may refer to this frame

    def give_up(self) -> None:
        """Give up what takes longer than ``patience_s``, and replace its threads."""
        if self._crew.pid == os.getpid():
            self._crew.give_up()

    def close(self) -> None:
        """Let the threads end after what was submitted until now; what comes later runs on the caller's thread."""
        if self._crew.pid == os.getpid():
            self._crew.stop()

    def _start(self) -> None:
        self._crew = _Crew(self._name, self._threads, self._patience_s)
        weakref.finalize(self, _Crew.stop, self._crew)


class _Job:
    """One piece of work; its future gets exactly one end: what came of it, or why nothing did."""

    __slots__ = ("_work", "future")

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work: Callable[[], Any] | None = work
        self.future: Future[Any] = Future()

    def run(self) -> None:
        """Do the work, unless it was cancelled; what ends the thread is raised."""
        work, self._work = self._work, None
        if work is None or not self.future.set_running_or_notify_cancel():
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
            with suppress(InvalidStateError):  # it was given up
                self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        """Give the future an error, unless it has its end already."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)


class _Thread(threading.Thread):
    """A thread, and what it is at.

    It is a daemon, because the interpreter waits for all others for ever.
    """

    def __init__(self, crew: "_Crew", name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.crew: _Crew | None = crew
        self.job: _Job | None = None
        self.since = 0.0
        self.is_given_up = False

    def run(self) -> None:
        crew, self.crew = self.crew, None
        assert crew is not None
        try:
            while crew.serve(self):
                pass
        finally:
            crew.leave(self)


class _Crew:
    """The threads of one process, and what they have to do. Ends when it is stopped, not with its last reference.

    Nothing here takes the lock in a finalizer, which may run while the same thread holds it.
    """

    def __init__(self, name: str, limit: int, patience_s: float) -> None:
        self.pid = os.getpid()
        self.threads: list[_Thread] = []
        self._name = name
        self._limit = limit
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._todo: deque[_Job] = deque()
        self._calls: SimpleQueue[None] = SimpleQueue()
        """One for each job, and one for each thread that has to end: who gets one looks what there is to do."""
        self._is_stopped = False
        self._started = 0
        weakref.finalize(self, _await_end, self._todo, self.threads)

    def enlist(self, job: _Job) -> bool:
        """Have a job done; return False if there is no thread for it and none can be started."""
        self.give_up()
        with self._lock:
            if self._is_stopped:
                return False
            self._todo.append(job)
            if not self._has_hands():
                self._todo.pop()
                return False
        self._calls.put(None)
        return True

    def give_up(self) -> None:
        """Leave to themselves the threads whose work takes too long, and those that have died without a word."""
        now = monotonic()
        with self._lock:
            lost = [thread for thread in self.threads if self._is_lost(thread, now)]
            for thread in lost:
                thread.is_given_up = True
                self._remove(thread)
        for thread in lost:
            if (job := thread.job) is not None:
                job.fail(TimeoutError(f"took longer than {self._patience_s} seconds"))

    def serve(self, thread: _Thread) -> bool:
        """Wait for a call and do what there is to do; return False if the thread has to end."""
        self._calls.get()
        with self._lock:
            if not self._todo:
                return not self._is_stopped
            # In this order: a thread that is killed in between has the job, or the queue still has it.
            thread.since, thread.job = monotonic(), self._todo[0]
            self._todo.popleft()
        thread.job.run()
        thread.job = None
        return not thread.is_given_up

    def leave(self, thread: _Thread) -> None:
        """Take note that a thread ends, of its own accord or because it was killed."""
        with self._lock:
            if thread.job in self._todo:  # it had no time to take it from there
                thread.job = None
            if thread in self.threads:
                self._remove(thread)
        if (job := thread.job) is not None:
            job.fail(RuntimeError("ended with its thread, which was killed"))

    def stop(self) -> None:
        """Let the threads end when all is done."""
        self._is_stopped = True
        for _ in list(self.threads):
            self._calls.put(None)

    def _is_lost(self, thread: _Thread, now: float) -> bool:
        return (thread.job is not None and now - thread.since > self._patience_s) or not thread.is_alive()

    def _remove(self, thread: _Thread) -> None:
        self.threads.remove(thread)
        self._calls.put(None)  # it may have taken one with it
        self._has_hands()

    def _has_hands(self) -> bool:
        """Start a thread if there is more to do than idle ones; return False if none can be started."""
        idle = sum(thread.job is None for thread in self.threads)
        if len(self._todo) <= idle or len(self.threads) >= self._limit:
            return True
        self._started += 1
        thread = _Thread(self, f"{self._name}-{self._started}")
        try:
            thread.start()
        except RuntimeError:
            return False
        self.threads.append(thread)
        if self._is_stopped:
            self._calls.put(None)
        return True


def _await_end(todo: deque[_Job], threads: list[_Thread]) -> None:
    """At interpreter exit: let what is running come to its end, for it may be inside a framework."""
    todo.clear()
    deadline = monotonic() + _EXIT_S
    for thread in list(threads):
        thread.join(max(0.0, deadline - monotonic()))
