"""Runs a job over cases in worker processes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any
from zlib import crc32

from .cases import Case

HERE = Path(__file__).resolve().parent


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
        with _worker(job if "." in job else f"paddle_operators.jobs.{job}", wanted) as process:
            assert process.stdout is not None
            for line in process.stdout:
                case, outcome = json.loads(line)
                del wanted[0]
                yield Case(**case), outcome
                until = until or (seconds and monotonic() + seconds)
                if until and monotonic() > until:
                    process.kill()
                    return
        if wanted:
            code = process.returncode
            yield wanted.pop(0), {"died": signal.Signals(-code).name if code < 0 else f"exit {code}"}


def _worker(job: str, cases: list[Case]) -> subprocess.Popen[str]:
    search = os.pathsep.join([str(HERE.parent), str(HERE.parents[2])])
    settings = {"PYTHONPATH": search, "OMP_NUM_THREADS": "1", "GLOG_minloglevel": "4", "FLAGS_call_stack_level": "0"}
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "paddle_operators.worker", job],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **settings},
        cwd=HERE.parent,  # where Python looks first
    )
    assert process.stdin is not None
    with process.stdin as given:
        given.write("".join(json.dumps([one.row, one.layout, one.dtype]) + "\n" for one in cases))
    return process


def sampled(cases: Iterable[Case], seed: int) -> list[Case]:
    """Return the cases in an order that is the same for the same seed."""
    return sorted(cases, key=lambda case: crc32(f"{seed} {case.id}".encode()))
