"""Runs a job over cases in worker processes."""

import json
import signal
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import Any
from zlib import crc32

from tests.processes import Program

from .cases import Case

WORKER = "from paddle_operators.worker import main; main()"


def outcomes(job: str, cases: Iterable[Case], seconds: float | None = None) -> Iterator[tuple[Case, Any]]:
    """Yield what a job says of each case, in order; ``{"died": signal}`` of one that killed its process.

    Args:
        job: the name of a function in :mod:`paddle_operators.jobs`, or a dotted one.
        cases: which.
        seconds: how long to go on after the first; for ever if left out.
    """
    wanted = list(cases)
    until = None
    while wanted:
        with Program(WORKER, job if "." in job else f"paddle_operators.jobs.{job}") as process:
            process.stdin.write("".join(json.dumps([one.row, one.layout, one.dtype]) + "\n" for one in wanted))
            process.stdin.close()
            for line in process.stdout:
                case, outcome = json.loads(line)
                del wanted[0]
                yield Case(**case), outcome
                until = until or (seconds and monotonic() + seconds)
                if until and monotonic() > until:
                    return
            code, _ = process.wait()
        if wanted:
            yield wanted.pop(0), {"died": signal.Signals(-code).name if code < 0 else f"exit {code}"}


def sampled(cases: Iterable[Case], seed: int) -> list[Case]:
    """Return the cases in an order that is the same for the same seed."""
    return sorted(cases, key=lambda case: crc32(f"{seed} {case.id}".encode()))
