"""What programs do with devices, under policies that move what they save: the same training, in less memory."""

import random
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tensorstash as ts
from tensorstash.backends import backend_named
from tensorstash.errors import TensorStashWarning
from tensorstash.policies.plan import HookPolicy
from tests.device.chosen import FIRST, KIND, devices
from tests.device.models import POLICIES, Attention, gradients, made
from tests.device.simulated import TO_HOST, WAITED, Simulated
from tests.samples import IS_LONG

KIB = 2**10
TIGHT = ts.Limits(in_flight=20 * KIB, ahead=20 * KIB)
AT_ONCE = ts.Limits(in_flight=0, ahead=0)


def stash(policy: HookPolicy | None = None, limits: ts.Limits = TIGHT) -> ts.Stash:
    return ts.stash(policy or ts.CpuOffload(), framework="torch", limits=limits, min_bytes=0)


def both(program: Callable[[Callable[[], Any]], list[Tensor]], limits: ts.Limits = TIGHT) -> None:
    """Assert that a program gives the same bits without a policy and with one."""
    one, results = stash(limits=limits), []
    for scope in (nullcontext, lambda: one):
        torch.manual_seed(0)
        results.append([tensor.detach().cpu().numpy().tobytes() for tensor in program(scope)])
    assert results[0] == results[1]
    assert results[0]


def of(net: nn.Module) -> list[Tensor]:
    found = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
    net.zero_grad(set_to_none=True)
    return found


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Attention(), Attention()).to(KIND)


def x(seed: int = 1, device: str = FIRST) -> Tensor:
    return torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(seed)).to(device)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_device_without_streams_trains_the_same_with_copies_that_wait(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = backend_named("torch").streams
    monkeypatch.setattr(streams, "_found", lambda: "it has no streams")
    monkeypatch.setattr(streams, "_known", {})
    model, batch = made("language")
    expected = gradients(model, batch, steps=2)
    one = stash(POLICIES[policy](tmp_path))
    assert gradients(model, batch, lambda: one, steps=2) == expected
    assert one.stats().stashed.tensors
    assert one.stats().waits == {FIRST: "it has no streams"}
    assert f"the program waits for copies of {FIRST}: it has no streams" in str(one.stats())


@pytest.mark.parametrize("layers", [4, 12] if IS_LONG else [4])
def test_a_large_head_adds_nothing_to_checkpoints_and_hardly_any_to_save_on_cpu(layers: int, device: Simulated) -> None:
    tokens = torch.randint(0, 4000, (1, 64)).to(KIND)

    def peak(scope: Callable[[], Any], checkpoints: bool, of: Callable[[list[int]], int] = max) -> int:
        torch.manual_seed(0)
        blocks = [Attention(64) for _ in range(layers)]
        for block in blocks if checkpoints else ():
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        model = nn.Sequential(nn.Embedding(4000, 64), *blocks, nn.LayerNorm(64), nn.Linear(64, 4000)).to(KIND)
        peaks = []
        for _ in range(3):
            model.zero_grad()
            torch.accelerator.synchronize(KIND)
            floor = device.live()
            device.reset_peak()
            with scope():
                loss = nn.functional.cross_entropy(model(tokens)[0], tokens[0])
            torch.accelerator.synchronize(KIND)  # a copy that is late may hold one input of a block more
            loss.backward()
            torch.accelerator.synchronize(KIND)
            peaks.append(device.peak() - floor)
            del loss
        return of(peaks)

    def offloads() -> Callable[[], Any]:
        one = stash(limits=ts.Limits(in_flight="128KiB", ahead="128KiB"))  # copies end as late as the machine likes
        return lambda: one

    assert peak(offloads(), True) <= peak(nullcontext, True)
    theirs = peak(lambda: torch.autograd.graph.save_on_cpu(device_type=KIND), False)
    assert peak(offloads(), False) <= 1.05 * theirs < peak(nullcontext, False)
    by_default = ts.stash("cpu_offload", framework="torch", min_bytes=0)
    assert peak(lambda: by_default, False, min) <= theirs  # a copy that is late may hold its source beside the logits


def test_a_tensor_of_twice_the_limit_is_copied_beside_the_computation(device: Simulated) -> None:
    leaf = torch.randn(256, 256).to(KIND).requires_grad_()
    one = stash(limits=ts.Limits(in_flight=2**17, ahead=2**17))
    device.link(bandwidth=5e6)
    device.memory(bandwidth=1e7)
    torch.accelerator.synchronize(KIND)
    device.records()
    with device.computations(), one:
        x = leaf
        for _ in range(6):
            x = x.tanh()
        loss = x.sum()
        torch.accelerator.synchronize(KIND)
        records = device.records()
    device.link()
    device.memory()
    copies = [record for record in records if record.direction == TO_HOST]
    assert [record.nbytes for record in copies][:3] == [2**18] * 3
    waits = [record for record in records if record.direction == WAITED and record.stream == 0]
    hidden = 0.0
    for copy in copies[:3]:
        begun, ended = copy.begun, copy.ended
        hidden += ended - begun
        hidden -= sum(max(min(wait.ended, ended) - max(wait.begun, begun), 0.0) for wait in waits)
    assert hidden >= 0.9 * sum(copy.ended - copy.begun for copy in copies[:3])
    loss.backward()


def test_a_stash_with_its_own_limit_gives_its_page_locked_memory_back(device: Simulated, net: nn.Module) -> None:
    before = device.pinned()
    one = stash(limits=ts.Limits(pinned="1GiB"))
    with one:
        loss = net(x()).square().mean()
    assert device.pinned() - before == one.stats().pinned_bytes > 0
    loss.backward()
    del one, loss
    assert device.pinned() == before


@pytest.mark.parametrize("per_step", [False, True], ids=["one stash", "a stash per step"])
def test_steps_of_random_lengths_lock_hardly_any_memory_from_the_third_on(
    per_step: bool, device: Simulated, net: nn.Module
) -> None:
    choose, one = random.Random(0), stash()
    locked, crossed = device.pinned(), 0
    for step in range(12):
        one = stash() if per_step else one
        before = one.stats().stashed.nbytes
        with one:
            loss = net(x()[:, : choose.randint(4, 16)]).square().mean()
        loss.backward()
        if step == 1:
            locked = device.pinned()
        if step > 1:
            crossed += one.stats().stashed.nbytes - before
        del loss
    assert crossed > 0
    assert device.pinned() - locked <= 0.05 * crossed


def test_tensors_beyond_the_page_locked_memory_stay_on_the_device() -> None:
    model, batch = made("language")
    expected, one = gradients(model, batch), stash(limits=ts.Limits(pinned="64KiB"))
    with pytest.warns(RuntimeWarning, match="no more than 64 KiB .*stay on the device"):
        assert gradients(model, batch, lambda: one) == expected
    assert 0 < one.stats().pinned_bytes <= 64 * KIB


def test_checkpoints(net: nn.Module) -> None:
    def program(scope: Callable[[], Any]) -> list[Tensor]:
        with scope():
            loss = net[1](checkpoint(net[0], x().requires_grad_(), use_reentrant=False)).square().mean()
        loss.backward()
        return of(net)

    both(program)


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")  # which is what programs do
@pytest.mark.parametrize("limits", [TIGHT, AT_ONCE], ids=["tight", "at once"])
def test_programs_may_run_under_streams_of_their_own(net: nn.Module, device: Simulated, limits: ts.Limits) -> None:
    device.delays(0.001, seed=3)

    def program(scope: Callable[[], Any]) -> list[Tensor]:
        main = torch.accelerator.current_stream()
        streams = [torch.Stream(device=KIND), torch.Stream(device=KIND)]
        for attempt in range(4):
            stream, batch = streams[attempt % 2], x(attempt)
            stream.wait_event(main.record_event())
            with stream:
                with scope():
                    loss = net(batch).square().mean()
                loss.backward()
            main.wait_event(stream.record_event())
            batch.record_stream(stream)
        return of(net)

    both(program, limits)


def test_two_devices_in_one_process() -> None:
    nets = [nn.Sequential(Attention()).to(device) for device in devices()]

    def program(scope: Callable[[], Any]) -> list[Tensor]:
        losses = []
        for index, net in enumerate(nets):
            with scope():
                losses.append(net(x(device=f"{KIND}:{index}")).square().mean())
        torch.autograd.backward(losses)
        return [gradient for net in nets for gradient in of(net)]

    both(program)


@pytest.mark.parametrize(("rate", "sent"), [(1e5, 0), (0.0, 5)], ids=["a slow link", "no limit"])
def test_blocks_beyond_a_budget_are_sent_where_the_link_takes_them_and_computed_again_elsewhere(
    rate: float, sent: int, device: Simulated
) -> None:
    device.link()
    net = nn.Sequential(*(Attention() for _ in range(6))).to(KIND)
    batch = torch.randn(2, 16, 32).to(KIND)
    with ts.wrap(net, "checkpoint | cpu_offload", budget="96KiB", min_bytes=0) as handle:
        for step in range(5):
            device.link(bandwidth=rate if step else 0.0)
            device.memory(bandwidth=2e7 if step else 0.0)  # blocks take their time on any machine
            net(batch.clone().requires_grad_()).square().mean().backward()
        blocks = {treatment: len(names) for treatment, names in handle.stats().blocks.items()}
    assert blocks.get("offloaded", 0) == sent


@pytest.mark.parametrize(("rate", "said"), [(1e5, 1), (0.0, 0)], ids=["a slow link", "no limit"])
def test_a_link_that_sets_the_pace_is_said_once_with_the_cure(
    rate: float, said: int, device: Simulated, net: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorstash.engine.link._WORTH_BYTES", 1)
    device.link(bandwidth=rate)
    one = stash()
    with one, pytest.warns(TensorStashWarning, match=rf"the link of {FIRST} sets") if said else nullcontext():
        for _ in range(5):
            net(x()).square().mean().backward()
    assert str(one.stats()).count("sets the pace") == said
    assert str(one.stats()).count("recompute | cpu_offload") == said


@pytest.mark.parametrize("name", ["language", "images"])
def test_the_program_waits_for_nothing_but_the_comparison_behind_backward(name: str, device: Simulated) -> None:
    model, x = made(name)
    # Workers wait for masks that they pack.
    stash = ts.stash("recompute | cpu_offload", framework="torch", min_bytes=256)
    for _ in range(3):
        before = device.waits()
        with stash:
            loss = model(x).square().mean()
        loss.backward()
    assert (bool(stash.stats().recomputed), device.waits() - before) == (True, 1)


@pytest.mark.parametrize(("device_of_model", "treated"), [(KIND, {"checkpointed"}), ("cpu", set())])
def test_auto_computes_blocks_again_of_a_model_on_an_accelerator(device_of_model: str, treated: set[str]) -> None:
    net = nn.Sequential(Attention(), Attention()).to(device_of_model)
    with ts.wrap(net, min_bytes=0) as handle:
        net(x(device=device_of_model)).square().mean().backward()
    assert set(handle.stats().blocks) == treated
