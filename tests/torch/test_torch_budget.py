"""A budget of saved tensors, held on PyTorch by processes, shapes and stores as programs have them."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import tensorstash as ts
from benchmarks.harness.meter import RESETS
from tensorstash.backends.torch.backend import TorchBackend
from tensorstash.engine.ledger import Ledger
from tensorstash.engine.planned.meter import Meter
from tensorstash.errors import TensorStashWarning
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


def test_what_an_operation_works_on_counts_until_its_memory_goes():
    """PyTorch lets go of the tensor that it is given, and keeps the memory until the operation has ended."""
    meter = Meter(Ledger(), TorchBackend().memory)
    given = torch.ones(1024)
    meter.watch_back(given, given, 4096, "seen")
    others = [given.data]
    del given
    assert meter.settle() == []
    assert meter.held() == 4096
    del others
    assert meter.settle() == [("seen", True)]
    assert meter.held() == 0


def test_what_is_made_again_in_the_memory_of_a_kept_tensor_counts_no_longer_than_it_is_in_use():
    kept = torch.ones(1024)
    meter = Meter(Ledger(), TorchBackend().memory)
    view = kept.data
    meter.watch_back(view, view, 4096, "seen", is_fresh=False)
    assert meter.held() == 4096
    del view
    assert meter.settle() == [("seen", True)]
    assert meter.held() == 0


def test_all_that_one_operation_works_on_counts_together():
    first, second = (torch.rand(2**18, requires_grad=True) for _ in range(2))
    stash = ts.stash(ts.Budget("256KiB", allow="disk_spill"), framework="torch", limits=ts.Limits(ahead=0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TensorStashWarning)  # it cannot be held: that is what is shown
        with stash:
            one, other = first.exp(), second.exp()
            product = one * other
        del one, other
        product.sum().backward()
    assert stash.stats().peak_held >= 2 * 2**20


def test_idle_buffers_are_in_the_budget():
    weights = [torch.ones(256, requires_grad=True) for _ in range(16)]
    inputs = torch.randn(1024, 256)
    budget = 8 * MIB
    stash = ts.stash(ts.Budget(budget), framework="torch")
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


def steps_of(model: torch.nn.Module, budget: ts.Budget, batches: list[torch.Tensor]) -> list[float]:
    """Return what each step has held at most, as a part of the budget; gradients are bitwise those without one."""
    stash = ts.stash(budget, framework="torch")
    tracker, found = stash._session._tracker, []
    for batch in batches:
        model.zero_grad()
        _loss(model, batch).backward()
        expected = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
        with stash:
            loss = _loss(model, batch)
        loss.backward()
        del loss
        assert all(map(torch.equal, expected, (parameter.grad for parameter in model.parameters())))
        found.append(tracker.peak / int(budget.size))
    return found


def _loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    result = model(batch)
    return (result[0] if isinstance(result, tuple) else result).square().mean()


def test_eight_shapes_that_take_turns_are_held_in_every_step():
    layers = [torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.GELU()) for _ in range(6)]
    batches = [torch.randn(512 + 128 * (step % 8), 128) for step in range(20)]
    found = steps_of(torch.nn.Sequential(*layers), ts.Budget("6MiB"), batches)
    assert max(found) <= 1.02, found


def test_the_disk_has_tracks_of_its_own_on_the_time_line():
    layers = [torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.Tanh()) for _ in range(6)]
    model, stash = torch.nn.Sequential(*layers), ts.stash(ts.Budget("1MiB", allow="keep+disk_spill"), framework="torch")
    for _ in range(2):
        with stash:
            loss = _loss(model, torch.randn(512, 128))
        loss.backward()
    events = stash.plan().to_chrome_trace()["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    tracks = {names[event["tid"]] for event in events if event["ph"] == "X"}
    assert {"disk out", "disk back"} <= tracks
    assert not {"links out", "links back"} & tracks


def measured(budget: int) -> dict[str, int]:
    """Return what a process of its own prints, as ``python -m tensorstash`` would start it."""
    worker = Path(__file__).with_name("resident_budget.py")
    environment = {**advised_environment(os.environ), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(worker), str(budget)], capture_output=True, text=True, check=True, env=environment
    )
    return json.loads(done.stdout)
