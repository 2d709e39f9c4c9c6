"""Threads that need not answer: work has one end, lost threads are replaced, nothing waits for work that hangs."""

import ctypes
import dis
import gc
import signal
import subprocess
import sys
import threading
import weakref
from concurrent.futures import CancelledError, ThreadPoolExecutor
from itertools import pairwise
from queue import SimpleQueue

import pytest

from tensorstash.host import workers as workers_module
from tensorstash.host.workers import Future, Workers

BEGINS = """
import atexit
atexit.register(lambda: at_last())  # after all that imports register
import threading
import tensorstash.host.workers as host

started, exiting = threading.Event(), threading.Event()
workers, at_last = host.Workers("test", 1), lambda: None
"""

HANGS = """
host._EXIT_S = 0.1
workers.submit(lambda: (started.set(), threading.Event().wait()))
workers.submit(lambda: print("begun"))
started.wait()
"""

ENDS = """
workers.submit(lambda: (started.set(), exiting.wait(), print("ended")))
started.wait()
atexit.register(exiting.set)
"""

IDLE = """
host._EXIT_S = 3600.0
workers, meeting = host.Workers("test", 3), threading.Barrier(3)
for job in [workers.submit(meeting.wait) for _ in range(3)]:
    job.result()
print("ended")
"""

DROPS = """
host._EXIT_S = 0.1
job = workers.submit(lambda: (started.set(), exiting.wait(), print("ended"), threading.current_thread())[-1])
workers.submit(lambda: print("begun"))
at_last = lambda: (exiting.set(), job.result().join(60))
started.wait()
"""

LATE = """
at_last = lambda: print(workers.submit(threading.get_ident).result(0) == threading.get_ident())
workers.submit(lambda: None).result()
"""


@pytest.fixture
def gate():
    """An event that is set at the end, so that no thread is left behind."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def made(request):
    """Return what makes workers, and what lists their threads by the name that they alone have."""

    def make(number, **options):
        return Workers(request.node.name, number, **options)

    make.threads = lambda: [one for one in threading.enumerate() if one.name.startswith(f"{request.node.name}-")]
    return make


def kill(thread):
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)) == 1


def refuse(thread):
    raise RuntimeError("can't start new thread")


@pytest.fixture
def quiet(monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda args: None)


def test_an_error_and_a_result_keep_nothing_alive(monkeypatch):
    class Payload:
        pass

    gc.collect()
    gc.disable()
    try:
        workers, payload = Workers("test", 1), Payload()
        gone = weakref.ref(payload)
        with pytest.raises(ZeroDivisionError):
            workers.submit(lambda payload=payload: 1 / 0).result()
        assert workers.submit(lambda payload=payload: id(payload)).result() == id(payload)
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(ZeroDivisionError):
            Workers("test", 1).submit(lambda payload=payload: 1 / 0).result()
        sys.last_value = None
        del payload
        assert gone() is None
    finally:
        gc.enable()


def test_where_no_thread_can_be_started_work_is_done_by_the_caller_until_one_can(made, monkeypatch):
    workers, main = made(2), threading.get_ident()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert workers.submit(threading.get_ident).result(0) == main
    assert not made.threads(), "who ends the process would wait for it"
    monkeypatch.undo()
    assert workers.submit(threading.get_ident).result(60) != main


@pytest.mark.parametrize("number", [1, 3])
def test_a_thread_that_is_killed_while_it_waits_is_replaced(made, number, quiet):
    workers, meeting = made(number), threading.Barrier(number, timeout=400)
    for future in [workers.submit(meeting.wait) for _ in range(number)]:
        future.result()
    victims = list(made.threads())
    for victim in victims:
        kill(victim)
    futures = [workers.submit(meeting.wait) for _ in range(number)]
    assert sorted(future.result(60) for future in futures) == list(range(number))
    for victim in victims:
        victim.join(60)
    assert not set(victims) & set(made.threads())


def test_work_that_takes_too_long_is_given_up_and_what_it_returns_is_dropped(made, gate):
    class Late:
        pass

    late, timeout_s = [Late()], 0.01
    gone = weakref.ref(late[0])
    workers = made(1, timeout_s=timeout_s)
    begun = threading.Event()
    hangs = workers.submit(lambda: (begun.set(), gate.wait(), late.pop())[2])
    assert begun.wait(60)
    (lost,) = made.threads()
    with pytest.raises(TimeoutError):
        hangs.result(2 * timeout_s)
    assert workers.submit(lambda: threading.current_thread()).result(60) is not lost
    with pytest.raises(TimeoutError, match=r"longer than 0\.01 seconds"):
        hangs.result(60)
    gate.set()
    lost.join(60)
    assert not lost.is_alive()
    assert gone() is None


def test_threads_end_with_their_owner_after_what_was_submitted(made, gate):
    workers, done = made(1), []
    workers.submit(gate.wait)
    last = workers.submit(lambda: done.append(1))
    (thread,) = made.threads()
    del workers
    gate.set()
    last.result(60)
    thread.join(60)
    assert done == [1]
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("program", "printed"), [(HANGS, ""), (ENDS, "ended\n"), (DROPS, "ended\n"), (IDLE, "ended\n"), (LATE, "True\n")]
)
def test_at_exit_running_work_has_a_few_seconds_and_nothing_else_waits(program, printed):
    command = [sys.executable, "-W", "error", "-c", BEGINS + program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


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


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_an_interrupt_of_who_waits_keeps_nobody_from_working_on():
    """Where the futures of the standard library lose their lock for ever, now and then."""
    workers = Workers("test", 1, timeout_s=60)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for number in range(60):
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


def test_work_is_done_in_order_on_one_thread(made):
    workers, done = made(1), []
    for future in [workers.submit(lambda i=i: done.append(i)) for i in range(100)]:
        future.result()
    assert done == list(range(100))


def test_threads_start_with_the_work_that_needs_them(made, gate):
    workers = made(3)
    for _ in range(100):
        workers.submit(lambda: None).result()
    assert len(made.threads()) == 1
    for _ in range(5):
        workers.submit(gate.wait)
    assert len(made.threads()) == 3


def test_who_is_told_of_the_end_finds_nothing_of_the_work_alive():
    def work(payload=threading.Event()):  # noqa: B008 - a default is what the work alone holds
        return payload.is_set()

    held, alive = weakref.ref(work.__defaults__[0]), []
    future = Future(work, ended=lambda: alive.append(held() is not None))
    del work
    future.run()
    assert alive == [False]


@pytest.mark.parametrize("is_begun", [True, False])
def test_a_thread_that_is_killed_at_work_is_replaced_and_its_work_is_an_error(is_begun, quiet, monkeypatch):
    workers = Workers("test", 1)
    with monkeypatch.context() as patch:
        if not is_begun:
            patch.setattr(Future, "run", lambda job: sys.exit())
        with pytest.raises(RuntimeError, match=r"ended (its thread by SystemExit|with its thread, which was killed)"):
            workers.submit(sys.exit).result(60)
    assert workers.submit(lambda: "next").result(60) == "next"


@pytest.mark.parametrize(("method", "behind"), [(Future._end, ""), (workers_module._ThreadPool._next, "CALL")])
def test_a_thread_that_is_killed_where_work_ends_or_begins_wakes_who_waits(method, behind, monkeypatch, quiet):
    """Killed before each operation, or behind each call, where the interpreter looks for what kills a thread."""

    class Gate(SimpleQueue):
        def get(self, timeout=None):
            waits.set()
            return super().get(timeout=timeout)

    def trace(frame, event, _):
        if frame.f_code is not method.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lasti in places[:1]:
            killed.append(places.pop(0))
            raise SystemExit
        return trace

    operations, killed = list(dis.get_instructions(method)), []
    wanted = [after.offset for before, after in pairwise(operations) if before.opname.startswith(behind)]
    teams = [Workers("test", 1) for _ in wanted]
    monkeypatch.setattr(workers_module, "SimpleQueue", Gate)
    for place, workers in zip(wanted, teams, strict=True):
        places, waits, told = [place], threading.Event(), threading.Event()
        threading.settrace(trace)
        future = workers.submit(waits.wait, ended=told.set)
        threading.settrace(None)
        _, error = future.outcome(60)
        assert error is None or "killed" in str(error)
        assert told.wait(60)
        assert workers.submit(lambda: "next").result(60) == "next"
    assert len(killed) > len(wanted) // 2


def test_an_end_that_comes_before_the_one_who_waits_is_seen_is_not_waited_for(monkeypatch):
    class Gate(SimpleQueue):
        def __init__(self):
            future.run()

        def get(self, timeout=None):
            raise AssertionError("nobody would open it")

    future = Future(lambda: 42)
    monkeypatch.setattr(workers_module, "SimpleQueue", Gate)
    assert future.result() == 42


def test_what_waits_behind_work_that_hangs_is_done_when_that_is_given_up(gate):
    workers = Workers("test", 1, timeout_s=0.01)
    hangs = workers.submit(gate.wait)
    waiting = workers.submit(lambda: "done")
    with pytest.raises(TimeoutError):
        hangs.result(0.02)
    workers.abandon()
    assert waiting.result(60) == "done"


def test_it_has_one_end_and_the_first_counts():
    ends = []
    future = Future(lambda: "result", lambda: ends.append("ended"))
    assert not future.done()
    future.run()
    future.fail(OSError("late"))
    future.run()
    assert future.done()
    assert future.outcome() == ("result", None)
    assert ends == ["ended"]


def test_all_who_wait_are_woken():
    go_on = threading.Event()
    future = Workers("test", 1).submit(lambda: go_on.wait(60))
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(future.result, 60) for _ in range(4)]
        go_on.set()
        assert [each.result() for each in waiting] == [True] * 4
