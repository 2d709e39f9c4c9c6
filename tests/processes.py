"""Processes of the tests' own: copies of this one in the middle of a test, and as it was before the first."""

import json
import os
import runpy
import signal
import socket
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self

import pytest

from tensorstash.host.forks import _LIVE

WATCHDOG_S = 60
"""A tenth of what sessions wait by default for what does not answer."""
FORKS = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]
"""Marks of tests that fork."""

_LOCK = type(threading.Lock())


def forked(child: Callable[[], object]) -> int:
    """Return the exit code of a child that runs ``child``, and is killed if it takes too long."""
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(WATCHDOG_S)
        _end_after(child)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@contextmanager
def locks_held() -> Iterator[list[Any]]:
    """Hold all locks that a child makes anew, as threads may at the fork, which the child does not have."""
    owners = [getattr(thing, "_pool", thing) for thing in list(_LIVE)]  # workers make their pool anew with its lock
    locks = [lock for owner in owners if isinstance(lock := getattr(owner, "_lock", None), _LOCK)]
    for lock in locks:
        lock.acquire()
    try:
        yield locks
    finally:
        for lock in locks:
            lock.release()


_copy: socket.socket | None = None


def keep_a_copy() -> None:
    """Fork what :class:`Program` starts from; to be called when all is imported, and no test has run."""
    global _copy
    if sys.platform != "linux" or _copy is not None:
        return
    _copy, requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the threads of who has started this process, which hold nothing of ours
        pid = os.fork()
    if not pid:
        _copy.close()
        _end_after(partial(_serve, requests))
    requests.close()


class Program:
    """A program in a copy of this process, as it was when all was imported and no test had run.

    To import the frameworks takes longer than most programs. Leaving the context kills it.

    Args:
        source: the path of a script, or its text.
        arguments: of its command line.
        variables: of its environment, beside those of this process.
    """

    def __init__(self, source: Path | str, *arguments: object, **variables: str) -> None:
        if _copy is None:
            pytest.skip("the system has no fork, or none that is safe")
        (given, stdin), (stdout, said), (status, left) = os.pipe(), os.pipe(), os.pipe()
        self.stdin, self.stdout, self._status = os.fdopen(stdin, "w"), os.fdopen(stdout), os.fdopen(status)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the program
        told = isinstance(source, Path), str(source), list(map(str, arguments)), {**os.environ, **variables}
        socket.send_fds(_copy, [json.dumps(told).encode()], [given, said, self._errors.fileno(), left])
        for fd in (given, said, left):
            os.close(fd)
        self.pid = int(self._status.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        for file in (self.stdin, self.stdout, self._status, self._errors):
            file.close()

    def wait(self) -> tuple[int, str]:
        """Wait until it has ended; return its exit status and what it has written to standard error."""
        self.stdin.close()
        code = int(self._status.readline())
        self._errors.seek(0)
        return code, self._errors.read()


def output_of(source: Path | str, *arguments: object, **variables: str) -> str:
    """Return what a program has printed, which must succeed."""
    (said,) = outputs_of(Program(source, *arguments, **variables))
    return said


def outputs_of(*programs: Program) -> list[str]:
    """Let programs end; return what each has printed. All must succeed."""
    with ExitStack() as running:
        said = [running.enter_context(program).stdout.read() for program in programs]
        for output, (code, errors) in zip(said, [program.wait() for program in programs], strict=True):
            assert code == 0, output + errors[-4000:]
    return said


def _serve(requests: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while received := socket.recv_fds(requests, 2**18, 4):
        message, fds, *_ = received
        if not message:
            return
        if not os.fork():
            requests.close()
            _end_after(partial(_keep, json.loads(message), fds))
        for fd in fds:
            os.close(fd)


def _keep(told: Any, fds: list[int]) -> None:
    """Fork a program, and say which process it is and how it has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, status = fds
    if pid := os.fork():
        for fd in streams:
            os.close(fd)
        os.write(status, f"{pid}\n".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with suppress(BrokenPipeError):  # nobody asks any more
            os.write(status, f"{code}\n".encode())
        return
    os.close(status)
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in enumerate("rww"))
    _become(*told)


def _become(is_path: bool, source: str, arguments: list[str], variables: dict[str, str]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Those of pytest hold what was raised, with its frames and all that is in them.
    sys.unraisablehook, threading.excepthook = sys.__unraisablehook__, threading.__excepthook__
    warnings.resetwarnings()
    warnings.simplefilter("ignore")
    os.environ.update(variables)
    sys.argv = [source if is_path else "-c", *arguments]
    if is_path:
        sys.path.insert(0, str(Path(source).parent))
        runpy.run_path(source, run_name="__main__")
    else:
        exec(source, {"__name__": "__main__"})


def _end_after(work: Callable[[], object]) -> NoReturn:
    """End this process, which is a fork, after its work, and do nothing that ends its parent."""
    code = 1
    try:
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if not isinstance(end.code, int | None):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
