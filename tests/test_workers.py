"""Threads that need not answer: work is done once, lost threads are replaced, nothing waits for what hangs."""

import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections import deque
from concurrent.futures import CancelledError

import pytest

from tensorstash.host import futures
from tensorstash.host.workers import Workers

HANGS = """
import threading
import tensorstash.host.workers

tensorstash.host.workers._EXIT_S = 0.1
started = threading.Event()
workers = tensorstash.host.workers.Workers("test", 1)
workers.submit(lambda: (started.set(), threading.Event().wait()))
workers.submit(lambda: print("begun"))
started.wait()
"""

ENDS = """
import threading
from tensorstash.host.workers import Workers

started, exiting = threading.Event(), threading.Event()
workers = Workers("test", 1)
workers.submit(lambda: (started.set(), exiting.wait(), print("ended")))
started.wait()
import atexit; atexit.register(exiting.set)
"""

IDLE = """
import threading
import tensorstash.host.workers

tensorstash.host.workers._EXIT_S = 3600.0
workers, meeting = tensorstash.host.workers.Workers("test", 3), threading.Barrier(3)
for job in [workers.submit(meeting.wait) for _ in range(3)]:
    job.result()
print("ended")
"""

DROPS = """
import threading
from tensorstash.host.workers import Workers

def last(waiting):
    started.set()
    while waiting:
        pass
    print("ended")

started = threading.Event()
workers = Workers("test", 1)
workers.submit(lambda: last(workers._pool._todo))
workers.submit(lambda: print("begun"))
started.wait()
"""


@pytest.fixture
def gate():
    """An event that is set at the end, so that no thread is left behind."""
    event = threading.Event()
    yield event
    event.set()


def kill(thread):
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)) == 1


@pytest.fixture
def quiet(monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda args: None)


def test_work_is_done_in_order_on_one_thread():
    workers, done = Workers("test", 1), []
    for future in [workers.submit(lambda i=i: done.append(i)) for i in range(100)]:
        future.result()
    assert done == list(range(100))
    assert len(workers._pool.threads) == 1


def test_threads_start_with_the_work_that_needs_them(gate):
    workers = Workers("test", 3)
    workers.submit(lambda: None).result()
    assert len(workers._pool.threads) == 1
    for _ in range(5):
        workers.submit(gate.wait)
    assert len(workers._pool.threads) == 3


def test_no_thread_starts_while_one_is_idle():
    workers = Workers("test", 3)
    for _ in range(5):
        workers.submit(lambda: None).result()
        while workers._pool.threads[0].job is not None:
            pass
    assert len(workers._pool.threads) == 1


def test_without_a_number_there_is_always_a_thread(gate):
    workers = Workers("test")
    for _ in range(10):
        workers.submit(gate.wait)
    assert workers.submit(lambda: "answer").result() == "answer"


def test_an_error_is_for_whoever_asks_and_the_thread_goes_on():
    workers = Workers("test", 1)
    with pytest.raises(ZeroDivisionError):
        workers.submit(lambda: 1 / 0).result()
    assert workers.submit(lambda: 1).result() == 1


def test_an_error_and_a_result_keep_nothing_alive():
    class Payload:
        pass

    gc.collect()
    gc.disable()
    try:
        workers, payload = Workers("test", 1), Payload()
        gone = weakref.ref(payload)
        assert workers.submit(lambda payload=payload: id(payload)).result()
        with pytest.raises(ZeroDivisionError):
            workers.submit(lambda payload=payload: 1 / 0).result()
        workers.close()
        with pytest.raises(ZeroDivisionError):
            workers.submit(lambda payload=payload: 1 / 0).result()
        sys.last_value = None
        del payload
        assert gone() is None
    finally:
        gc.enable()


def test_who_is_told_of_the_end_finds_nothing_of_the_work_alive():
    def work(payload=threading.Event()):  # noqa: B008 - a default is what the work alone holds
        return payload.is_set()

    held, alive = weakref.ref(work.__defaults__[0]), []
    future = futures.Future(work, ended=lambda: alive.append(held() is not None))
    del work
    future.run()
    assert alive == [False]


def test_work_is_not_done_if_an_interrupt_came_while_it_was_submitted(gate, monkeypatch):
    workers, done, ended = Workers("test", 1), [], []
    workers.submit(gate.wait)
    enlist = workers._pool.enlist

    def interrupted(job):
        enlist(job)
        raise KeyboardInterrupt

    monkeypatch.setattr(workers._pool, "enlist", interrupted)
    with pytest.raises(KeyboardInterrupt):
        workers.submit(lambda: done.append(1), ended=lambda: ended.append(1))
    monkeypatch.undo()
    gate.set()
    workers.submit(lambda: None).result(60)
    assert (done, ended) == ([], [1])


def test_all_idle_threads_end_when_the_workers_are_closed():
    workers, meeting = Workers("test", 3), threading.Barrier(3, timeout=60)
    for future in [workers.submit(meeting.wait) for _ in range(3)]:
        future.result(60)
    threads = list(workers._pool.threads)
    workers.close()
    for thread in threads:
        thread.join(60)
    assert [thread.is_alive() for thread in threads] == [False] * 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_does_not_wait_for_what_its_parent_began(gate):
    future = Workers("test", 1).submit(gate.wait)
    pid = os.fork()
    if pid == 0:
        try:
            future.result(20)
        except RuntimeError:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    gate.set()


def test_where_no_thread_can_be_started_work_is_done_by_the_caller_until_one_can(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    workers, main = Workers("test", 2), threading.get_ident()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert workers.submit(threading.get_ident).result(0) == main
    assert not workers._pool.threads, "who ends the process would wait for it"
    assert not workers._pool._todo, "it is done already"
    monkeypatch.undo()
    assert workers.submit(threading.get_ident).result(60) != main


def test_cancelled_work_is_not_done(gate):
    workers, done = Workers("test", 1), []
    workers.submit(gate.wait)
    waiting = workers.submit(lambda: done.append(1))
    assert waiting.cancel()
    gate.set()
    workers.submit(lambda: None).result()
    assert not done
    with pytest.raises(CancelledError):
        waiting.result()


@pytest.mark.parametrize("number", [1, 3])
def test_a_thread_that_is_killed_while_it_waits_is_replaced(number, quiet):
    workers, meeting = Workers("test", number), threading.Barrier(number, timeout=60)
    for future in [workers.submit(meeting.wait) for _ in range(number)]:
        future.result()
    victims = list(workers._pool.threads)
    for victim in victims:
        kill(victim)
    futures = [workers.submit(meeting.wait) for _ in range(number)]
    assert sorted(future.result(60) for future in futures) == list(range(number))
    for victim in victims:
        victim.join(60)
    assert not set(victims) & set(workers._pool.threads)


def test_a_thread_that_is_killed_at_work_is_replaced_and_its_work_is_an_error(quiet):
    workers = Workers("test", 1)
    with pytest.raises(RuntimeError, match="ended its thread by SystemExit"):
        workers.submit(sys.exit).result(60)
    assert workers.submit(lambda: "next").result(60) == "next"


def test_an_end_that_comes_before_the_one_who_waits_is_seen_is_not_waited_for(monkeypatch):
    class Ends(deque):
        def append(self, gate):
            future.run()
            super().append(gate)

    class Gate:
        def __init__(self):
            self.is_taken = False

        def acquire(self, timeout=-1):
            assert not self.is_taken, "nobody would open it"
            self.is_taken = True

    future = futures.Future(lambda: 42)
    future._gates = Ends()
    monkeypatch.setattr(futures.threading, "Lock", Gate)
    assert future.result() == 42


def test_work_that_takes_too_long_is_given_up_and_what_it_returns_is_dropped(gate):
    class Late:
        pass

    late, timeout_s = [Late()], 0.01
    gone = weakref.ref(late[0])
    workers = Workers("test", 1, timeout_s=timeout_s)
    hangs = workers.submit(lambda: (gate.wait(), late.pop())[1])
    (lost,) = workers._pool.threads
    with pytest.raises(TimeoutError):
        hangs.exception(2 * timeout_s)
    assert workers.submit(lambda: threading.current_thread()).result(60) is not lost
    with pytest.raises(TimeoutError, match=r"longer than 0\.01 seconds"):
        hangs.result(60)
    gate.set()
    lost.join(60)
    assert not lost.is_alive()
    assert gone() is None


def test_what_waits_behind_work_that_hangs_is_done_when_that_is_given_up(gate):
    workers = Workers("test", 1, timeout_s=0.01)
    hangs = workers.submit(gate.wait)
    waiting = workers.submit(lambda: "done")
    with pytest.raises(TimeoutError):
        hangs.exception(0.02)
    workers.abandon()
    assert waiting.result(60) == "done"


def test_threads_end_with_their_owner_after_what_was_submitted(gate):
    workers, done = Workers("test", 1), []
    workers.submit(gate.wait)
    last = workers.submit(lambda: done.append(1))
    (thread,) = workers._pool.threads
    del workers
    gate.set()
    last.result(60)
    thread.join(60)
    assert done == [1]
    assert not thread.is_alive()


def test_after_close_work_is_done_by_the_caller():
    workers = Workers("test", 1)
    workers.submit(lambda: None).result()
    (thread,) = workers._pool.threads
    workers.close()
    thread.join(60)
    assert workers.submit(threading.get_ident).result(0) == threading.get_ident()


def test_a_thread_that_is_killed_before_it_has_taken_its_work_leaves_it_to_another(quiet):
    class KilledAtFirst(deque):
        def popleft(self):
            self.popleft = super().popleft
            raise SystemExit

    workers = Workers("test", 1)
    workers._pool._todo = KilledAtFirst()
    assert workers.submit(lambda: 7).result(60) == 7


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_while_another_thread_submits_leaves_the_child_no_lock():
    workers = Workers("test", 1)
    with workers._pool._lock:
        pid = os.fork()
        if not pid:
            try:
                signal.alarm(20)
                os._exit(workers.submit(lambda: 7).result(10))
            finally:
                os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own():
    workers = Workers("test", 1)
    workers.submit(lambda: None).result()
    pid = os.fork()
    if not pid:
        try:
            os._exit(workers.submit(lambda: 7).result(60))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


@pytest.mark.parametrize(("program", "printed"), [(HANGS, ""), (ENDS, "ended\n"), (DROPS, "ended\n")])
def test_at_exit_what_runs_has_a_few_seconds_and_what_waits_is_dropped(program, printed):
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


def test_idle_threads_end_at_exit():
    done = subprocess.run([sys.executable, "-W", "error", "-c", IDLE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")
