"""Runs cases in processes that may die: ``python -m paddle_operators.worker JOB`` reads cases and says what came out.

Each line that is read is a case in JSON, each that is written an outcome. One process imports Paddle and runs nothing;
forks of it run the cases, and the case during which one dies is said to have killed it.
"""

import gc
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from .cases import Case

SECONDS = 60
"""After how long a case counts as one that never ends: of processor time, and ten times as long where it waits."""


def main() -> None:
    """Serve one job: the dotted name of a function from a case to what goes into JSON."""
    module, _, name = sys.argv[1].rpartition(".")
    job = getattr(importlib.import_module(module), name)
    cases = [Case(*json.loads(line)) for line in sys.stdin]
    # Scopes look through what is alive for parameters; there are none yet.
    gc.collect()
    gc.freeze()
    while cases:
        died = _served(job, cases)
        if died is not None:
            print(json.dumps([vars(cases.pop(0)), {"died": died}]), flush=True)


def _served(job: Callable[[Case], Any], cases: list[Case]) -> str | None:
    """Let a fork run the cases, and drop those that are done; return what it died of, if it did."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)  # or it would never learn that nobody reads any more
        _run_all(job, cases, writing)
    os.close(writing)
    with os.fdopen(reading) as outcomes:
        for line in outcomes:
            if line.endswith("\n"):
                print(line, end="", flush=True)
                cases.pop(0)
    status = os.waitpid(pid, 0)[1]
    if not cases:
        return None
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"


def _run_all(job: Callable[[Case], Any], cases: list[Case], writing: int) -> None:
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    try:
        with os.fdopen(writing, "w") as outcomes:
            for case in cases:
                signal.setitimer(signal.ITIMER_PROF, SECONDS)
                signal.alarm(10 * SECONDS)
                outcomes.write(json.dumps([vars(case), job(case)]) + "\n")
                outcomes.flush()
    finally:
        os._exit(1 if sys.exc_info()[0] else 0)


if __name__ == "__main__":
    main()
