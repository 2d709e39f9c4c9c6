"""Copies under way when something ends: memory, a process, its parent's device."""

import gc
import sys
import threading
from contextlib import nullcontext, suppress

import pytest
import torch
from inside import session_of, settle
from torch import Tensor, nn

import tensorstash as ts
from tests.device.chosen import FIRST, KIND
from tests.device.models import Attention, gradients, made
from tests.device.simulated import Simulated
from tests.processes import forked
from tests.samples import IS_LONG

KIB = 2**10
LIMITS = ts.Limits(), ts.Limits(in_flight="20KiB", ahead="20KiB")
CASES = [("quantize", LIMITS[0]), ("cast", LIMITS[0])]  # which copy nothing
CASES += [(policy, limits) for policy in ("cpu_offload", "recompute | cpu_offload") for limits in LIMITS]


class Mean(nn.Module):
    """A loss."""

    def forward(self, x: Tensor) -> Tensor:
        return x.square().mean()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_drops_what_its_parent_has_under_way_and_never_touches_the_device(device: Simulated) -> None:
    model, x = made("language")
    expected = gradients(model, x)
    stash = ts.stash(ts.CpuOffload(), framework="torch", min_bytes=0)
    torch.manual_seed(0)
    device.link(bandwidth=1e6)
    with stash:
        loss = model(x)

    def child() -> None:
        nonlocal loss, stash
        raised: list[object] = []
        sys.unraisablehook = raised.append  # by a finalizer that asked for the device
        loss = stash = None
        gc.collect()
        assert not raised

    assert forked(child) == 0
    device.link()
    loss.backward()
    found = [loss.detach(), *(parameter.grad for parameter in model.parameters())]
    assert [part.cpu().numpy().tobytes() for part in found] == expected


@pytest.mark.parametrize(("policy", "limits"), CASES)
def test_a_device_that_is_full_raises_the_frameworks_own_error_and_the_next_step_works(
    device: Simulated, policy: str, limits: ts.Limits
) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(*(Attention() for _ in range(3)), Mean()).to(KIND).eval(), torch.randn(2, 16, 32).to(KIND)
    stash = ts.stash(policy, framework="torch", min_bytes=0, limits=limits)
    gradients(model, x, lambda: stash, steps=2)  # a lossy policy has found all readers
    expected = gradients(model, x, lambda: stash if "quantize" in policy or policy == "cast" else nullcontext())
    torch.accelerator.synchronize(KIND)
    before, ends = device.live(), set()
    for free in range(0, 200, 10) if IS_LONG else range(25, 200, 50):
        end = "forward"
        with device.limited(before + free * KIB), suppress(torch.OutOfMemoryError):
            with stash:
                loss = model(x)
            end = "backward"
            loss.backward()
            end = "none"
        ends.add(end)
        loss = None
        model.zero_grad(set_to_none=True)
        settle(stash)
        for _ in range(1000):  # the thread of autograd drops the graph some time after the program has its error
            torch.accelerator.synchronize(KIND)
            if device.live() == before:
                break
            threading.Event().wait(0.01)
        assert device.live() == before, (free, end)
        assert not stash.stats().live.tensors
        assert gradients(model, x, lambda: stash) == expected
    assert ends >= {"forward", "backward"}


def test_sessions_of_a_process_copy_in_the_same_two_streams() -> None:
    streams = session_of(ts.stash("cpu_offload", framework="torch")).backend.streams
    others = session_of(ts.stash("cpu_offload", framework="torch")).backend.streams
    assert streams.side_stream(FIRST, "out") is others.side_stream(FIRST, "out")
    assert streams.side_stream(FIRST, "out") != streams.side_stream(FIRST, "back")
