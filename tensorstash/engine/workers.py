"""Threads that work behind the computation, started when there is work and gone with their owner."""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

R = TypeVar("R")


class Workers:
    """Runs functions in order of submission on a fixed number of threads. Thread-safe.

    Threads start with the first work, end when the last reference to this object goes, and are joined at interpreter
    exit. In a forked child, which inherits no threads, new ones are started.

    Args:
        name: prefix of the threads' names.
        threads: how many.
    """

    __slots__ = ("_executor", "_name", "_pid", "_threads")

    def __init__(self, name: str, threads: int) -> None:
        self._name = name
        self._threads = threads
        self._start()

    def submit(self, work: Callable[[], R]) -> Future[R]:
        """Run ``work`` once: later, or now where no thread can be started, such as while the interpreter exits."""
        if self._pid != os.getpid():
            self._start()
        # An executor that can start no thread has queued the work all the same, and may yet come to it.
        once = [work]
        try:
            return self._executor.submit(lambda: once.pop()())
        except RuntimeError:
            return _run_now(once.pop())

    def _start(self) -> None:
        self._pid = os.getpid()
        self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix=self._name)


def _run_now(work: Callable[[], R]) -> Future[R]:
    done: Future[R] = Future()
    try:
        done.set_result(work())
    except Exception as error:
        done.set_exception(error)
    return done
