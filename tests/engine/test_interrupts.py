"""Ctrl-C at any moment: nothing is leaked, nothing hangs, and the next step is right.

``TENSORSTASH_INTERRUPTS`` sets how often each program is interrupted.
"""

import multiprocessing
import os
import random
import signal
import threading
from collections import Counter

import pytest
from interrupted_training import train

from tensorstash.engine.stream_content import StreamContent
from tensorstash.testing.labs import lab_of
from tests.processes import FORKS
from tests.samples import IS_LONG

pytestmark = FORKS
INTERRUPTS = int(os.environ.get("TENSORSTASH_INTERRUPTS", "8"))
PROGRAMS = [("torch", "memory"), ("torch", "compressed disk"), ("torch", "disk, shared records"), ("paddle", "disk")]
PROGRAMS += [("paddle", "quantize")]
if IS_LONG:
    PROGRAMS += [("torch", "disk"), ("torch", "quantize"), ("paddle", "memory"), ("paddle", "disk, shared records")]


@pytest.mark.timeout(60 + 4 * INTERRUPTS)
@pytest.mark.parametrize(("framework", "policy"), PROGRAMS)
def test_after_an_interrupt_at_any_moment_the_budgets_are_whole_and_the_next_step_is_right(framework, policy, tmp_path):
    moments, outcomes, pause = random.Random(f"{framework} {policy}"), Counter(), threading.Event()
    ours, theirs = multiprocessing.Pipe()
    work = lab_of(framework), policy, str(tmp_path), theirs
    child = multiprocessing.get_context("fork").Process(target=train, args=work)
    child.start()
    theirs.close()
    try:
        for _ in range(INTERRUPTS):
            ours.send(True)
            assert ours.recv() == "may be interrupted"
            pause.wait(moments.uniform(0, 0.06))
            os.kill(child.pid, signal.SIGINT)
            outcomes[ours.recv()] += 1
        ours.send(False)
        child.join(60)
    finally:
        child.kill()
        child.join()
        ours.close()
    assert (outcomes, child.exitcode) == ({"whole": INTERRUPTS}, 0)


def test_a_content_of_a_device_that_was_interrupted_while_it_was_made_goes_without_an_error():
    StreamContent.__new__(StreamContent).__del__()
