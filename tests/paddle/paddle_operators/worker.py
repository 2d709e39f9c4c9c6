"""Runs cases, and may die of one: reads cases of the job of its argument, and says what came out.

Each line that is read is a case in JSON, each that is written an outcome.
"""

import gc
import json
import os
import signal
import sys
from pkgutil import resolve_name

import paddle

from .cases import Case

SECONDS = 60
"""After how long a case counts as one that never ends: of processor time, and ten times as long where it waits."""


def main() -> None:
    """Serve one job: the dotted name of a function from a case to what goes into JSON."""
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
