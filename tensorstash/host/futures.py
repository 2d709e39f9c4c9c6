"""The outcome of work on another thread, and waiting for it, whatever interrupts the one who waits.

The futures of the standard library guard their state with a condition, whose methods are Python: an interrupt (Ctrl-C)
between them leaves the lock taken, and the thread that does the work waits for it for ever. Here each change of state
is one operation of C, which no signal handler can divide.
"""

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, Generic, TypeVar

R = TypeVar("R")


class Future(Generic[R]):
    """One piece of work and its outcome: exactly one end, by its result, an error, or being cancelled.

    Thread-safe, also where an interrupt may come at any moment.

    Args:
        work: to run, once.
        ended: called when there is an end, also one by cancelling or by losing the thread; must not raise.

    >>> future = Future(lambda: 6 * 7)
    >>> future.run()
    >>> future.result()
    42
    """

    __slots__ = ("_ended", "_ends", "_gates", "_work")

    def __init__(self, work: Callable[[], R], ended: Callable[[], object] | None = None) -> None:
        self._work = [work]  # who takes it out does it, or has cancelled it
        self._ended = [] if ended is None else [ended]
        self._ends: list[tuple[Any, BaseException | None]] = []  # the first counts
        self._gates: list[threading.Lock] = []

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
        """Wait for the end, in seconds or for as long as it takes; return its result and its error, or None for each.

        Raises:
            TimeoutError: it has not ended in time.
        """
        if not self._ends:
            self._wait(timeout_s)
        return self._ends[0]

    def result(self, timeout_s: float | None = None) -> R:
        """Wait for the end, as :meth:`outcome` does, and return its result.

        Raises:
            BaseException: the exception of the work; a CancelledError if it was cancelled, a RuntimeError if its thread
                was lost; a TimeoutError if it has not ended in time.
        """
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
        while self._gates:
            try:
                self._gates.pop().release()
            except IndexError:
                break
        while self._ended:
            try:
                ended = self._ended.pop()
            except IndexError:
                break
            ended()

    def _wait(self, timeout_s: float | None) -> None:
        gate = threading.Lock()
        gate.acquire()
        self._gates.append(gate)
        if self._ends:  # perhaps nobody has seen the gate
            return
        gate.acquire(timeout=-1 if timeout_s is None else min(max(timeout_s, 0.0), threading.TIMEOUT_MAX))
        if not self._ends:
            raise TimeoutError
