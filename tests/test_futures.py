"""What comes of work elsewhere: one end, whoever waits and however it is interrupted."""

import gc
import os
import signal
import sys
import threading
import weakref
from concurrent.futures import CancelledError

import pytest

from tensorstash.host.futures import Future
from tensorstash.host.workers import Workers


def test_it_has_one_end_and_the_first_counts():
    ends = []
    future = Future(lambda: "result", lambda: ends.append("ended"))
    assert not future.done()
    future.run()
    future.fail(OSError("late"))
    future.run()
    assert future.done()
    assert (future.result(), future.exception()) == ("result", None)
    assert ends == ["ended"]


def test_what_returns_after_its_end_is_dropped():
    class Late:
        pass

    late = [Late()]
    gone = weakref.ref(late[0])
    future = Future(late.pop)
    future.fail(TimeoutError("given up"))
    future.run()
    gc.disable()
    try:
        assert gone() is None
    finally:
        gc.enable()
    with pytest.raises(TimeoutError, match="given up"):
        future.result()


def test_what_is_cancelled_is_not_done_and_what_is_begun_is_not_cancelled():
    done, ends = [], []
    future = Future(lambda: done.append(1), lambda: ends.append(1))
    assert future.cancel()
    assert not future.cancel()
    future.run()
    assert (done, ends) == ([], [1])
    with pytest.raises(CancelledError):
        future.result()
    other = Future(lambda: other.cancel())
    other.run()
    assert other.result() is False


def test_all_who_wait_are_woken():
    go_on = threading.Event()
    workers = Workers("test", 1)
    future = workers.submit(lambda: go_on.wait(60))
    got = []
    threads = [threading.Thread(target=lambda: got.append(future.result(60))) for _ in range(4)]
    for thread in threads:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert got == [True] * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_waits_for_no_work_of_the_parent():
    go_on = threading.Event()
    workers = Workers("test", 1)
    future = workers.submit(lambda: go_on.wait(60))
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)
        try:
            os._exit(0 if isinstance(future.exception(), RuntimeError) and workers.submit(lambda: 1).result() else 1)
        finally:
            os._exit(2)
    go_on.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert future.result(60) is True


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_an_interrupt_of_who_waits_keeps_nobody_from_working_on():
    """Where the futures of the standard library lose their lock for ever, now and then."""
    workers = Workers("test", 1, timeout_s=60)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for number in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-5 * (1 + number % 40))
                while True:
                    workers.submit(lambda: None).result(60)
            except KeyboardInterrupt:
                pass
            assert workers.submit(lambda: "works").result(60) == "works"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
