"""The device path on CUDA devices: the contract, streams, and what programs do with both.

Not collected where there is no device; the orders themselves are proved without one, by simulated streams.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

import tensorstash as ts
from tensorstash.errors import BackendError
from tensorstash.policies.limits import Limits
from tensorstash.testing import BackendSuite
from tensorstash.testing.labs.torch import TorchLab
from tests.device.models import Attention

pytestmark = pytest.mark.gpu

TIGHT = Limits(in_flight="1 MiB", ahead="1 MiB")
AT_ONCE = Limits(in_flight=0, ahead=0)


class TestTorchOnCuda(BackendSuite):
    lab = TorchLab(("cuda:0",))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Attention(256) for _ in range(4))).to("cuda:0")


def inputs() -> Tensor:
    return torch.randn(4, 128, 256, device="cuda:0")


def stash(limits: Limits = TIGHT) -> ts.Stash:
    return ts.stash(ts.CpuOffload(), framework="torch", limits=limits, min_bytes=0)


@contextmanager
def no_synchronisation() -> Iterator[None]:
    """Refuse every call that makes the host wait for the device."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_host_never_waits_for_the_device() -> None:
    net, x, scope = model(), inputs(), stash(Limits())
    for attempt in range(3):
        if attempt == 2:  # pages are locked by then
            with no_synchronisation():
                with scope:
                    loss = net(x).square().mean()
                loss.backward()
        else:
            with scope:
                loss = net(x).square().mean()
            loss.backward()
        torch.cuda.synchronize()


def test_pinned_memory_is_that_of_the_payloads_and_is_used_again() -> None:
    net, x, scope = model(), inputs(), ts.stash(ts.CpuOffload(), framework="torch")
    peaks = []
    for _ in range(4):
        with scope:
            loss = net(x).square().mean()
        payloads = scope.stats().live.nbytes
        loss.backward()
        peaks.append(scope.stats().pinned_bytes)
    assert payloads <= peaks[-1] <= 1.05 * payloads + 2 * 2**20
    assert peaks[-1] == peaks[1]


def test_what_belongs_to_another_stream_is_not_used_again_too_early() -> None:
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    scope = stash(AT_ONCE)
    for value in range(50):
        x = torch.full((1 << 20,), float(value), device="cuda")
        side.wait_stream(main)
        with torch.cuda.stream(side):
            leaf = torch.ones(1 << 20, device="cuda", requires_grad=True)
            torch.cuda._sleep(2_000_000)
            with scope:
                y = leaf * x
        del x
        noise = [torch.full((1 << 20,), -1.0, device="cuda") for _ in range(4)]
        with torch.cuda.stream(side):
            y.sum().backward()
            assert leaf.grad is not None
            assert (leaf.grad == value).all()
        main.wait_stream(side)
        del noise


def test_a_graph_that_is_captured_is_refused() -> None:
    x = torch.randn(256, 256, device="cuda", requires_grad=True)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(BackendError, match="CUDA graph"), torch.cuda.graph(graph), stash():
        (x * 1.0).exp()
