"""How long to wait for a store that may never answer, and on which threads it is asked."""

from collections.abc import Callable
from typing import Any, TypeVar

from tensorstash.host.futures import Future
from tensorstash.host.workers import Workers

R = TypeVar("R")

Ask = Callable[[Callable[[], Any]], Any]
"""Calls a function and returns what it returns; raises TimeoutError if that takes too long."""


class Timeouts:
    """Bounds every wait for a store. Thread-safe.

    A call of the operating system that hangs cannot be interrupted, and the thread that made it is lost. So a store
    that may hang is asked on a thread that can be: one for each call that is under way, kept for the next.

    Args:
        timeout_s: longest wait, in seconds.
    """

    __slots__ = ("_callers", "timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._callers = Workers("tensorstash-caller", timeout_s=timeout_s)

    def ask(self, question: Callable[[], R]) -> R:
        """Return what ``question`` returns on another thread; an answer that comes too late is dropped there.

        Raises:
            TimeoutError: it did not return in time. ``question`` itself must not raise this.
            RuntimeError: it has ended its thread.
        """
        answers: list[R] = []  # so that what is returned belongs to nobody else, not even for a moment
        answer = self._callers.submit(lambda: answers.append(question()))
        try:
            self.wait(answer)
            answer.result()
        finally:
            del answer  # an error that it holds would refer to it through this frame
        return answers.pop()

    def wait(self, answer: Future[Any]) -> None:
        """Wait until what runs on another thread has come to an end.

        Raises:
            TimeoutError: it has not in time.
        """
        try:
            answer.exception(self.timeout_s)
        except TimeoutError:
            raise TimeoutError(
                f"took longer than {self.timeout_s} seconds; the device hangs, or timeout_s is too short for it"
            ) from None
