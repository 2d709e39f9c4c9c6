"""The device path on CUDA devices: the contract, streams, and what programs do with both.

Skipped, visibly, where there is no device; the orders themselves are proved without one, by simulated streams.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tensorstash as ts
from tensorstash.errors import BackendError, SavedTensorModifiedError
from tensorstash.policies.limits import Limits
from tensorstash.testing import BackendSuite
from tensorstash.testing.labs.torch import TorchLab

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

TIGHT = Limits(in_flight="1 MiB", ahead="1 MiB")
AT_ONCE = Limits(in_flight=0, ahead=0)


class TestTorchOnCuda(BackendSuite):
    lab = TorchLab(("cuda:0",))


class TestTorchOnCudaWithoutLimits(BackendSuite):
    lab = TorchLab(("cuda:0",))
    limits = AT_ONCE


class Block(nn.Module):
    """A layer of a transformer, with what fused attention saves."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.enter = nn.Linear(width, 3 * width)
        self.leave = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.enter(self.norm(x)).chunk(3, -1)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + self.leave(nn.functional.gelu(mixed.transpose(1, 2).flatten(2)))


def model(device: str = "cuda:0") -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(4))).to(device)


def inputs(device: str = "cuda:0", seed: int = 1) -> Tensor:
    return torch.randn(4, 128, 256, generator=torch.Generator().manual_seed(seed)).to(device)


def gradients(net: nn.Module) -> list[Tensor]:
    found = [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]
    net.zero_grad(set_to_none=True)
    return found


def assert_same(got: list[Tensor], expected: list[Tensor]) -> None:
    assert len(got) == len(expected) > 0
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def stash(limits: Limits = TIGHT, policy: Any = None) -> ts.Stash:
    return ts.stash(policy or ts.CpuOffload(), framework="torch", limits=limits, min_bytes=0)


@contextmanager
def no_synchronisation() -> Iterator[None]:
    """Refuse every call that makes the host wait for the device."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        yield


@pytest.mark.parametrize("limits", [Limits(), TIGHT, AT_ONCE], ids=["default", "tight", "at once"])
def test_gradients_are_those_without_hooks(limits: Limits) -> None:
    net = model()
    net(inputs()).square().mean().backward()
    expected = gradients(net)
    scope = stash(limits)
    for _ in range(4):
        with scope:
            loss = net(inputs()).square().mean()
        loss.backward()
        assert_same(gradients(net), expected)
    assert scope.stats().stored["memory"].tensors > 0
    assert scope.stats().live.tensors == 0


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


def test_device_memory_between_forward_and_backward_falls() -> None:
    net, x = model(), inputs()
    held = []
    for scope in (None, stash(AT_ONCE)):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        if scope is None:
            loss = net(x).square().mean()
        else:
            with scope:
                loss = net(x).square().mean()
        held.append(torch.cuda.memory_allocated() - before)
        loss.backward()
        gradients(net)
    assert held[1] < 0.35 * held[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_and_a_gradient_scaler(dtype: torch.dtype) -> None:
    net, results = model(), []
    for scope in (None, stash()):
        scaler = torch.amp.GradScaler("cuda", enabled=dtype is torch.float16)
        with torch.autocast("cuda", dtype):
            if scope is None:
                loss = net(inputs()).float().square().mean()
            else:
                with scope:
                    loss = net(inputs()).float().square().mean()
        scaler.scale(loss).backward()
        results.append(gradients(net))
    assert_same(results[1], results[0])


def test_gradient_accumulation_over_two_live_graphs() -> None:
    net, results = model(), []
    for scope in (None, stash()):
        losses = []
        for seed in range(3):
            if scope is None:
                losses.append(net(inputs(seed=seed)).square().mean())
            else:
                with scope:
                    losses.append(net(inputs(seed=seed)).square().mean())
        for loss in (losses[1], losses[0], losses[2]):
            loss.backward()
        results.append(gradients(net))
    assert_same(results[1], results[0])


def test_a_second_backward_and_a_double_backward() -> None:
    net, results = model(), []
    for scope in (None, stash()):
        x = inputs().requires_grad_()
        if scope is None:
            loss = net(x).square().mean()
        else:
            with scope:
                loss = net(x).square().mean()
        loss.backward(retain_graph=True)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        slope.square().sum().backward()
        results.append(gradients(net))
    assert_same(results[1], results[0])


def test_users_may_run_under_streams_of_their_own() -> None:
    net, results = model(), []
    for scope in (None, stash()):
        streams = [torch.cuda.Stream(), torch.cuda.Stream()]
        for attempt in range(6):
            stream, x = streams[attempt % 2], inputs(seed=attempt)
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                if scope is None:
                    loss = net(x).square().mean()
                else:
                    with scope:
                        loss = net(x).square().mean()
                loss.backward()
            torch.cuda.current_stream().wait_stream(stream)
            x.record_stream(stream)
        results.append(gradients(net))
    assert_same(results[1], results[0])


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


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_two_devices_in_one_process() -> None:
    nets = [model("cuda:0"), model("cuda:1")]
    results = []
    for scope in (None, stash()):
        losses = []
        for device, net in enumerate(nets):
            x = inputs(f"cuda:{device}")
            if scope is None:
                losses.append(net(x).square().mean())
            else:
                with scope:
                    losses.append(net(x).square().mean())
        torch.autograd.backward(losses)
        results.append([gradient for net in nets for gradient in gradients(net)])
    assert_same(results[1], results[0])


def test_a_graph_that_is_captured_is_refused() -> None:
    x = torch.randn(256, 256, device="cuda", requires_grad=True)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(BackendError, match="CUDA graph"), torch.cuda.graph(graph), stash():
        (x * 1.0).exp()


def test_a_source_that_is_modified_before_its_copy_is_refused() -> None:
    x = torch.randn(1 << 22, device="cuda", requires_grad=True)
    with stash(Limits()):
        y = (x * 1.0).exp()
        loss = y.sum()
    with torch.no_grad():
        y.zero_()
    with pytest.raises(SavedTensorModifiedError):
        loss.backward()


@pytest.mark.parametrize("name", ["compressed", "disk", "quantized", "quantized to disk"])
def test_chains(name: str, tmp_path: Any) -> None:
    policy = {
        "compressed": ts.CpuOffload() | ts.Compress(min_ratio=1),
        "disk": ts.CpuOffload() | ts.DiskSpill(tmp_path),
        "quantized": ts.Quantize(bits=8),
        "quantized to disk": ts.Quantize(bits=8) | ts.CpuOffload() | ts.DiskSpill(tmp_path),
    }[name]
    net = model()
    net(inputs()).square().mean().backward()
    expected = gradients(net)
    scope = stash(policy=policy)
    for _ in range(3):
        with scope:
            loss = net(inputs()).square().mean()
        loss.backward()
        got = gradients(net)
        if "quantized" in name:
            for one, other in zip(got, expected, strict=True):
                assert torch.linalg.vector_norm(one - other) <= 0.05 * torch.linalg.vector_norm(other) + 1e-6
        else:
            assert_same(got, expected)
