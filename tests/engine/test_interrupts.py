"""Ctrl-C at any moment: nothing is leaked, nothing hangs, and the next step is right.

``TENSORSTASH_INTERRUPTS`` sets how often each program is interrupted.
"""

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from tests.samples import IS_LONG

HERE = Path(__file__).parent
INTERRUPTS = int(os.environ.get("TENSORSTASH_INTERRUPTS", "12"))
PROGRAMS = [("torch", "memory"), ("torch", "compressed disk"), ("torch", "disk, shared records"), ("paddle", "disk")]
PROGRAMS += [("paddle", "quantize")]
if IS_LONG:
    PROGRAMS += [("torch", "disk"), ("torch", "quantize"), ("paddle", "memory"), ("paddle", "disk, shared records")]


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.timeout(60 + 4 * INTERRUPTS)
@pytest.mark.parametrize(("framework", "policy"), PROGRAMS)
def test_after_an_interrupt_at_any_moment_the_budgets_are_whole_and_the_next_step_is_right(framework, policy, tmp_path):
    program = [sys.executable, str(HERE / "interrupted_training.py"), framework, policy, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE.parent.parent), str(HERE)])}
    moments, outcomes, pause = random.Random(f"{framework} {policy}"), Counter(), threading.Event()
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            for _ in range(INTERRUPTS):
                process.stdin.write("\n")
                process.stdin.flush()
                said = process.stdout.readline()
                if not said.strip().isdigit():
                    break
                pause.wait(moments.uniform(0, 0.06))
                os.kill(int(said), signal.SIGINT)
                outcomes[process.stdout.readline().strip()] += 1
            process.stdin.close()
            errors = process.stderr.read()
            ended = process.wait(60)
        finally:
            process.kill()
    assert (outcomes, ended) == ({"whole": INTERRUPTS}, 0), errors
