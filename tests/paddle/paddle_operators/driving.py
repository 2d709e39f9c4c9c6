"""Runs a job over cases in worker processes, which may die of one."""

import gc
import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from pkgutil import resolve_name
from typing import Any
from zlib import crc32

import paddle

from tests.processes import Program

from .cases import Case

SECONDS = 60
"""After how long a case counts as one that never ends: of processor time, and ten times as long where it waits."""


def outcomes(job: str, cases: Iterable[Case]) -> Iterator[tuple[Case, Any]]:
    """Yield what a job says of each case, in order; ``{"died": signal}`` of one that killed its process.

    Args:
        job: a function from a case to what goes into JSON, by its dotted name in this package.
        cases: to run.
    """
    wanted = list(cases)
    while wanted:
        with Program(f"from {__name__} import serve; serve()", f"paddle_operators.{job}") as process:
            process.stdin.write("".join(json.dumps([one.row, one.layout, one.dtype]) + "\n" for one in wanted))
            process.stdin.close()
            for line in process.stdout:
                case, outcome = json.loads(line)
                del wanted[0]
                yield Case(**case), outcome
            code, _ = process.wait()
        if wanted:
            yield wanted.pop(0), {"died": signal.Signals(-code).name if code < 0 else f"exit {code}"}


def serve() -> None:
    """Serve the job of the argument: each line that is read is a case in JSON, each that is written an outcome."""
    job = resolve_name(sys.argv[1])
    cases = [Case(*json.loads(line)) for line in sys.stdin]  # all, or whoever writes them would wait
    outcomes = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    paddle.set_flags({"FLAGS_call_stack_level": 0})
    # Scopes look through what is alive for parameters; there are none yet.
    gc.collect()
    gc.freeze()
    for case in cases:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(10 * SECONDS)
        print(json.dumps([vars(case), job(case)]), file=outcomes, flush=True)


def sampled(cases: Iterable[Case], seed: int) -> list[Case]:
    """Return the cases in an order that is the same for the same seed."""
    return sorted(cases, key=lambda case: crc32(f"{seed} {case.id}".encode()))
