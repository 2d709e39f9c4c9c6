"""A budget of saved tensors, held on PyTorch by processes, shapes and stores as programs have them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tensorstash as ts
from tensorstash.cli.memory import RESETS
from tensorstash.host.allocator import advised_environment
from tensorstash.host.pool import POOL

MIB = 2**20


TEMPORARIES = 32 * MIB
"""More than what a step of the program computes with, reads ahead and has under way, and fragments of all of it."""


@pytest.mark.skipif(not RESETS, reason="the system cannot reset the peak of resident memory")
def test_resident_memory_is_what_the_budget_implies():
    budget = 40 * MIB
    found = measured(budget)
    assert found["held"] <= 1.02 * budget
    assert found["resident"] <= budget + TEMPORARIES
    assert not found["scipy"]


def test_idle_buffers_are_in_the_budget():
    weights = [torch.ones(256, requires_grad=True) for _ in range(16)]
    inputs = torch.randn(1024, 256)
    budget = 8 * MIB
    stash = ts.stash(ts.Budget(budget))
    for _ in range(3):
        idle = POOL.take(6 * MIB)
        del idle
        hidden = inputs
        with stash:
            for weight in weights:
                hidden = (hidden * weight).tanh()
        assert stash._session._tracker.held + POOL.idle_bytes <= 1.02 * budget
        hidden.sum().backward()
        del hidden


def measured(budget: int) -> dict[str, int]:
    """Return what a process of its own prints, as ``python -m tensorstash`` would start it."""
    worker = Path(__file__).with_name("resident_budget.py")
    environment = {**advised_environment(os.environ), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(worker), str(budget)], capture_output=True, text=True, check=True, env=environment
    )
    return json.loads(done.stdout)
