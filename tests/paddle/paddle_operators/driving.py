"""Runs jobs over cases in processes of their own, which may die of one."""

import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pkgutil import resolve_name
from typing import Any, TextIO
from zlib import crc32

import paddle

from tests.processes import Program, forked

from .cases import Case

SECONDS = 60
"""After how long a case counts as one that never ends: of processor time, and ten times as long where it waits."""


class Server(Program):
    """A program that imports everything once, and has a copy of itself do each job, which may die of it."""

    def outcomes(self, job: str, cases: Iterable[Case]) -> dict[Case, Any]:
        """Return what a job says of each case, in order; ``{"died": signal}`` of one that killed its process.

        A job is a function from a case to what goes into JSON, by its dotted name in this package.
        """
        wanted, found = list(cases), dict[Case, Any]()
        while wanted:
            print(json.dumps([job, [*map(vars, wanted)]]), file=self.stdin, flush=True)
            while isinstance(said := json.loads(self.stdout.readline()), list):
                found[wanted.pop(0)] = said[0]
            if wanted:
                found[wanted.pop(0)] = {"died": signal.Signals(-said).name if said < 0 else f"exit {said}"}
        return found


def serve() -> None:
    """Serve: a line that is read is a job with its cases, one that is written an outcome in a list, or an exit code."""
    outcomes = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    paddle.set_flags({"FLAGS_call_stack_level": 0})
    for name, cases in map(json.loads, sys.stdin):
        job = resolve_name(f"paddle_operators.{name}")
        # Scopes look through what is alive for parameters; there are none yet.
        gc.collect()
        gc.freeze()
        print(forked(partial(_answer, job, cases, outcomes)), file=outcomes, flush=True)


def _answer(job: Callable[[Case], Any], cases: list[dict[str, str]], outcomes: TextIO) -> None:
    for case in cases:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(10 * SECONDS)
        print(json.dumps([job(Case(**case))]), file=outcomes, flush=True)


def sampled(cases: Iterable[Case], seed: int) -> list[Case]:
    """Return the cases in an order that is the same for the same seed."""
    return sorted(cases, key=lambda case: crc32(f"{seed} {case.id}".encode()))
