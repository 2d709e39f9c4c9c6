"""Ctrl-C at any moment: nothing is leaked, nothing hangs, and the next step is right.

``TENSORSTASH_INTERRUPTS`` sets how often each program is interrupted.
"""

import os
import random
import signal
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from tensorstash.engine.stream_content import StreamContent
from tests.processes import Program
from tests.samples import IS_LONG

HERE = Path(__file__).parent
INTERRUPTS = int(os.environ.get("TENSORSTASH_INTERRUPTS", "8"))
PROGRAMS = [("torch", "memory"), ("torch", "compressed disk"), ("torch", "disk, shared records"), ("paddle", "disk")]
PROGRAMS += [("paddle", "quantize")]
if IS_LONG:
    PROGRAMS += [("torch", "disk"), ("torch", "quantize"), ("paddle", "memory"), ("paddle", "disk, shared records")]


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.timeout(60 + 4 * INTERRUPTS)
@pytest.mark.parametrize(("framework", "policy"), PROGRAMS)
def test_after_an_interrupt_at_any_moment_the_budgets_are_whole_and_the_next_step_is_right(framework, policy, tmp_path):
    moments, outcomes, pause = random.Random(f"{framework} {policy}"), Counter(), threading.Event()
    with Program(HERE / "interrupted_training.py", framework, policy, tmp_path) as process:
        for _ in range(INTERRUPTS):
            process.stdin.write("\n")
            process.stdin.flush()
            said = process.stdout.readline()
            if not said.strip().isdigit():
                break
            pause.wait(moments.uniform(0, 0.06))
            os.kill(int(said), signal.SIGINT)
            outcomes[process.stdout.readline().strip()] += 1
        ended, errors = process.wait()
    assert (outcomes, ended) == ({"whole": INTERRUPTS}, 0), errors


def test_a_content_of_a_device_that_was_interrupted_while_it_was_made_goes_without_an_error():
    StreamContent.__new__(StreamContent).__del__()
