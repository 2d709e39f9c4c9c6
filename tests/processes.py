"""Processes of the tests' own: copies of this one in the middle of a test, and programs."""

import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn, Self

import pytest

WATCHDOG_S = 60  # a tenth of what sessions wait by default for what does not answer
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
    """Hold all locks of the package's objects, as threads may at the fork, which the child does not have."""
    owners = [thing for thing in gc.get_objects() if str(type(thing).__module__).startswith("tensorstash")]
    locks = [getattr(owner, name, None) for owner in owners for name in ("_lock", "lock")]
    with ExitStack() as held:
        yield [held.enter_context(lock) for lock in locks if isinstance(lock, _LOCK)]


class Program:
    """A program of its own, which imports the modules that the tests import. Leaving the context kills it.

    Args:
        source: the path of a script, or its text.
        arguments: of its command line.
        variables: of its environment, beside those of this process.
    """

    def __init__(self, source: Path | str, *arguments: object, **variables: str) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the program
        start = [str(source)] if isinstance(source, Path) else ["-c", source]
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", *start, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.pid, self.stdin, self.stdout = self._process.pid, self._process.stdin, self._process.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for file in (self.stdin, self.stdout, self._errors):
            file.close()

    def wait(self) -> tuple[int, str]:
        """Wait until it has ended; return its exit status and its standard error."""
        self.stdin.close()
        code = self._process.wait()
        self._errors.seek(0)
        return code, self._errors.read()


def output_of(source: Path | str, *arguments: object, **variables: str) -> str:
    """Return the output of a program, which must succeed."""
    (said,) = outputs_of(Program(source, *arguments, **variables))
    return said


def outputs_of(*programs: Program) -> list[str]:
    """Let programs end; return the output of each. All must succeed."""
    with ExitStack() as running:
        said = [running.enter_context(program).stdout.read() for program in programs]
        for output, (code, errors) in zip(said, [program.wait() for program in programs], strict=True):
            assert code == 0, output + errors[-4000:]
    return said


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
