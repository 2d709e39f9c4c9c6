"""Processes of the tests' own: some train together, some are forked in the middle of a test."""

import os
import signal
import subprocess
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tensorstash.host.forks import _LIVE

ROOT = Path(__file__).resolve().parent.parent
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
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(WATCHDOG_S)
            child()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
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


def outputs_of(commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]]) -> list[str]:
    """Run commands side by side, each in its environment; return what each has printed. All must succeed."""
    places = {"PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = [
        subprocess.Popen(command, text=True, env={**environment, **places}, cwd=ROOT, **pipes)
        for command, environment in zip(commands, environments, strict=True)
    ]
    try:
        outputs = [process.communicate(timeout=200) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(started, outputs, strict=True):
        assert process.returncode == 0, errors[-4000:]
    return [output for output, _ in outputs]
