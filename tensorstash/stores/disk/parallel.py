"""Doing the pieces of one record at once."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from tensorstash.host.workers import Workers

T = TypeVar("T")


def for_each(job: Callable[[T], None], items: Sequence[T], workers: Workers, helpers: int) -> None:
    """Call ``job`` on every item, on this thread and on up to ``helpers`` others; return when no call is running.

    This thread begins with the first, the others with the last: what is to be done beside the rest comes last.

    Helpers that are busy elsewhere, or cannot be started any more, are not waited for: this thread does their part.
    After a failure the items that nobody has begun are left out, and the first error is raised.
    """
    if len(items) == 1:
        job(items[0])
        return
    todo: deque[Callable[[], None]] = deque(partial(job, item) for item in items)
    begun: list[None] = []
    ended: list[None] = []
    bell: SimpleQueue[None] = SimpleQueue()
    errors: list[BaseException] = []

    def work(take: Callable[[], Callable[[], None]]) -> None:
        while todo and not errors:
            try:
                call = take()
            except IndexError:
                return
            try:
                call()
            except BaseException as error:
                errors.append(error)

    def help_out() -> None:
        begun.append(None)
        try:
            work(todo.pop)
        finally:
            ended.append(None)
            bell.put(None)

    # A write that is still running must not outlive the call: interrupts wait, also those of who waits. All of it is
    # inside of one block, since they may come wherever a function begins.
    is_begun = False
    while True:
        try:
            if not is_begun:
                is_begun = True
                for _ in range(min(helpers, len(items) - 1)):
                    workers.submit(help_out)
                work(todo.popleft)
            todo.clear()  # nothing is left to do for helpers that have yet to begin
            while len(ended) < len(begun):
                bell.get()
            break
        except BaseException as error:
            errors += [error]
    if errors:
        first = errors[0]
        errors.clear()
        try:
            raise first
        finally:
            del first  # else the error holds this frame, which holds the error, and with it every buffer below
