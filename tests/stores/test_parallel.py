"""Pieces done at once: all of them, or an error, and nothing still running."""

import gc
import os
import signal
import sys
import threading
import weakref
from functools import partial
from queue import SimpleQueue
from typing import ClassVar

import pytest

from tensorstash.host.workers import Workers
from tensorstash.stores.disk import parallel
from tensorstash.stores.disk.parallel import for_each


@pytest.fixture
def workers():
    return Workers("test", 4)


def test_every_item_is_done_once(workers):
    for count in (0, 1, 2, 50):
        done = []
        for_each(done.append, range(count), workers, 3)
        assert sorted(done) == list(range(count))


def test_items_really_run_at_once(workers):
    meeting = threading.Barrier(3, timeout=30)
    for_each(lambda _: meeting.wait(), range(3), workers, 2)


def test_helpers_begin_with_the_last(workers):
    helped, all_helped = [], threading.Event()

    def job(item):
        if item == 0:
            assert all_helped.wait(timeout=30)
            return
        helped.append(item)
        if len(helped) == 3:
            all_helped.set()

    for_each(job, range(4), workers, 1)
    assert helped == [3, 2, 1]


@pytest.mark.parametrize("failing", [0, 1, 5])
def test_the_first_error_is_raised_when_nothing_runs_any_more(workers, failing):
    running, meeting = [], threading.Barrier(2, timeout=30)

    def job(item):
        running.append(item)
        try:
            if item in (0, 5):
                meeting.wait()
            if item == failing:
                raise OSError(item)
        finally:
            running.remove(item)

    with pytest.raises(OSError, match=str(failing)):
        for_each(job, range(6), workers, 1)
    assert not running


def test_an_error_keeps_nothing_alive(workers):
    class Buffer:
        pass

    def fail(buffers):
        def job(item):
            raise OSError(f"{item} of {len(buffers)}")

        for_each(job, range(4), workers, 2)

    gc.disable()
    try:
        buffer = Buffer()
        gone = weakref.ref(buffer)
        with pytest.raises(OSError):
            fail([buffer])
        sys.last_value = None
        del buffer
        assert gone() is None
    finally:
        gc.enable()


def test_a_helper_that_has_yet_to_start_keeps_nothing_alive():
    class Never:
        kept: ClassVar[list[object]] = []

        def submit(self, work):
            self.kept.append(work)

    class Buffer:
        pass

    buffer = Buffer()
    gone = weakref.ref(buffer)
    done = []
    for_each(partial(lambda kept, item: done.append((kept is not None, item)), buffer), range(3), Never(), 2)
    del buffer
    assert done == [(True, 0), (True, 1), (True, 2)]
    assert len(Never.kept) == 2
    assert gone() is None


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("place", ["its own piece", "waiting", "both"])
def test_an_interrupt_is_raised_only_when_nothing_runs_any_more(workers, place):
    """As Ctrl-C does, on the caller's thread alone."""
    helping, came, go_on, running = threading.Event(), threading.Event(), threading.Event(), []

    def on_signal(*_):
        came.set()
        raise KeyboardInterrupt

    def interrupt():
        if place != "its own piece":
            os.kill(os.getpid(), signal.SIGINT)
            assert came.wait(30)
        go_on.set()

    def job(item):
        if item == 0:
            assert helping.wait(30)
            threading.Timer(0.05, interrupt).start()  # by then the caller waits, if it is not very slow
            if place != "waiting":
                raise KeyboardInterrupt
        if item == 3:
            running.append(item)
            helping.set()
            assert go_on.wait(30)
            running.remove(item)

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        with pytest.raises(KeyboardInterrupt):
            for_each(job, range(4), workers, 1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not running


def test_busy_workers_are_not_waited_for():
    release = threading.Event()
    workers = Workers("test", 1)
    workers.submit(release.wait)
    done = []
    for_each(done.append, range(5), workers, 1)
    assert done == list(range(5))
    release.set()


def test_the_first_of_two_errors_is_raised(workers, monkeypatch):
    begun, first_is_noted = threading.Barrier(2, timeout=30), threading.Event()

    class Bell(SimpleQueue):
        """What this thread waits for once it has noted an error."""

        def get(self, *arguments):
            first_is_noted.set()
            return super().get(*arguments)

    def job(number):
        begun.wait()
        if number == 0:
            raise ValueError("first")
        raise ValueError("second" if first_is_noted.wait(timeout=30) else "too early")

    monkeypatch.setattr(parallel, "SimpleQueue", Bell)
    with pytest.raises(ValueError, match="first"):
        for_each(job, [0, 1], workers, 1)
    assert first_is_noted.is_set()


def test_what_nobody_has_begun_before_a_failure_is_left_out(workers):
    begun = []

    def job(item):
        begun.append(item)
        raise OSError(item)

    with pytest.raises(OSError, match=r"^0$"):
        for_each(job, range(3), workers, 0)
    assert begun == [0]
