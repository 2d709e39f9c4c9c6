"""Exact bytes of a step: the most that the device holds, and what crosses to the host and back."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from inside import session_of
from torch import Tensor, nn

import tensorstash as ts
from tensorstash.backends.torch import layout
from tensorstash.backends.torch.streams import DeviceStreams
from tensorstash.cli.frameworks.torch import accelerators
from tensorstash.errors import StashError
from tests.device.chosen import KIND, devices
from tests.device.models import Attention, Scope
from tests.device.simulated import TO_DEVICE, TO_HOST, Simulated

BUDGET = 256 * 2**10


class Residual(nn.Module):
    """Two convolutions with batch normalisation, and what went in."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.second = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.second(self.first(x)))


class Shared(nn.Module):
    """Saves each result several times, and the transpose of one weight all along."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64) / 8)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(6):
            x = x @ self.weight.t()
            x = x * x.sigmoid() + x.tanh() * x
        return x


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "transformer": (lambda: nn.Sequential(*(Attention(64) for _ in range(2))), lambda: torch.randn(4, 48, 64)),
    "channels last": (
        lambda: nn.Sequential(Residual(), Residual(), Residual()),
        lambda: torch.randn(4, 16, 20, 20).to(memory_format=torch.channels_last),
    ),
    "duplicates": (Shared, lambda: torch.randn(512, 64)),
}


class Step:
    """A step of training that is repeated."""

    def __init__(self, name: str, device: Simulated) -> None:
        self.device = device
        build, draw = MODELS[name]
        torch.manual_seed(0)
        self.model, self.x = build().to(KIND), draw().to(KIND)
        self(nullcontext)
        self.floor = device.live()

    def __call__(self, scope: Scope, *, has_left: bool = False) -> None:
        torch.manual_seed(0)
        with scope():
            loss = self.model(self.x).square().mean()
        if has_left:  # else backward takes the tensors that are still there
            torch.accelerator.synchronize(KIND)
        loss.backward()
        torch.accelerator.synchronize(KIND)

    def peak(self, scope: Scope) -> int:
        """Return the most bytes beyond the model, its input and its gradients."""
        self.device.reset_peak()
        self(scope)
        return self.device.peak() - self.floor

    def crossed(self, scope: Scope, direction: int) -> int:
        """Return the bytes that were copied one way."""
        self.device.records()
        self(scope, has_left=True)
        return sum(record.nbytes for record in self.device.records() if record.direction == direction)

    def saved(self) -> int:
        """Return the bytes of all memory that has something saved in it, without that of parameters."""
        weights = {parameter.untyped_storage().data_ptr() for parameter in self.model.parameters()}
        found: dict[int, Tensor] = {}

        def pack(tensor: Tensor) -> Tensor:
            address = tensor.untyped_storage().data_ptr()
            if address not in weights:
                found[address] = tensor.detach()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            self.model(self.x).square().mean()
        return sum(tensor.untyped_storage().nbytes() for tensor in found.values())


def offloaded(budget: int, **options: Any) -> ts.Stash:
    limits = ts.Limits(in_flight=budget, ahead=budget)
    return ts.stash(ts.CpuOffload(), framework="torch", limits=limits, **options)


@pytest.mark.parametrize("name", MODELS)
def test_the_device_holds_what_it_holds_with_save_on_cpu_and_the_budgets(name: str, device: Simulated) -> None:
    step = Step(name, device)
    plain = step.peak(nullcontext)
    theirs = step.peak(lambda: torch.autograd.graph.save_on_cpu(device_type=KIND))
    at_once, budgeted = offloaded(0, min_bytes=0), offloaded(BUDGET, min_bytes=0)
    assert theirs < plain / 2
    assert abs(step.peak(lambda: at_once) - theirs) <= 0.01 * theirs
    assert step.peak(lambda: budgeted) <= theirs + 2 * BUDGET


def held_by(blocks: int, policy: str, device: Simulated) -> tuple[list[float], list[bytes]]:
    """Return what a step holds, in inputs of a block: at most in forward, at its end, at most; and gradients."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)) for _ in range(blocks)]
    model, x = nn.Sequential(nn.Linear(64, 64), *layers).to(KIND), torch.randn(192, 64).to(KIND)
    found: list[int] = []
    with ts.wrap(model, policy, min_bytes=0) as handle:
        for step in range(2):
            device.link(bandwidth=1e7 if step else 0.0)  # sources go as budgets say, not since their copies have ended
            torch.accelerator.synchronize(KIND)
            floor = device.live()
            device.reset_peak()
            loss = model(x).sum()
            found = [device.peak() - floor]
            torch.accelerator.synchronize(KIND)
            found.append(device.live() - floor)
            loss.backward()
            torch.accelerator.synchronize(KIND)
            found.append(device.peak() - floor)
    assert len(handle.stats().blocks["checkpointed"]) == blocks
    bits = [parameter.grad.cpu().numpy().tobytes() for parameter in model.parameters() if parameter.grad is not None]
    return [nbytes / x.nbytes for nbytes in found], bits


def test_checkpoints_that_are_offloaded_leave_two_inputs_on_the_device_however_many_blocks(device: Simulated) -> None:
    few, many = 4, 14
    (kept_of_few, _), (kept, expected) = (held_by(blocks, "checkpoint", device) for blocks in (few, many))
    assert [most - least for least, most in zip(kept_of_few, kept, strict=True)] == [many - few] * 3
    assert kept[1] == many
    left_of_few, left = (held_by(blocks, "checkpoint | cpu_offload", device) for blocks in (few, many))
    growth = [(most - least) / (many - few) for least, most in zip(left_of_few[0], left[0], strict=True)]
    assert max(growth) <= 0.05
    own = 1, 0, 1  # the input of the block that is computed is there in any case
    excess = [most - (inputs - many + one) for most, inputs, one in zip(left[0], kept, own, strict=True)]
    assert max(excess) <= 2
    assert left[1] == expected


@pytest.mark.parametrize("name", MODELS)
def test_neither_parameters_nor_duplicates_cross(name: str, device: Simulated) -> None:
    step = Step(name, device)
    stash = offloaded(2**20, min_bytes=0)
    distinct, pinned = step.saved(), device.pinned()
    step(lambda: stash)
    crossed = step.crossed(lambda: stash, TO_HOST)
    assert 0 < crossed <= distinct
    assert 0 < step.crossed(lambda: stash, TO_DEVICE) <= distinct
    assert step.crossed(lambda: torch.autograd.graph.save_on_cpu(device_type=KIND), TO_HOST) > 1.2 * distinct
    assert device.pinned() - pinned <= 1.05 * crossed + 64 * 2**10  # small ones share pages


def test_quantized_payloads_cross_small(device: Simulated) -> None:
    step = Step("transformer", device)
    policies = "cpu_offload", "quantize:bits=8 | cpu_offload"
    plain, small = (ts.stash(policy, framework="torch", min_bytes=0) for policy in policies)
    for way in (TO_HOST, TO_DEVICE):
        assert 0 < step.crossed(lambda: small, way) < 0.7 * step.crossed(lambda: plain, way)


def test_nothing_is_held_for_copies_of_a_graph_that_is_gone(device: Simulated) -> None:
    device.link(bandwidth=1e6)
    stash = offloaded(2**20, min_bytes=0)
    leaf = torch.full((1000,), 0.5).to(KIND).requires_grad_()
    before = device.live()
    with stash:
        y = leaf
        for _ in range(4):
            y = (y * y).tanh()
    assert device.live() - before > leaf.nbytes
    del y
    assert device.live() == before


def test_page_locked_memory_of_graphs_that_are_gone_is_used_again_while_another_is_kept(device: Simulated) -> None:
    stash = offloaded(2**20, min_bytes=0)
    leaf = torch.full((1000,), 0.5).to(KIND).requires_grad_()

    def saved() -> Tensor:
        y = leaf
        with stash:
            for _ in range(4):
                y = (y * y).tanh()
        return y

    kept, locked = saved(), []
    for _ in range(8):
        device.link(bandwidth=1e6)
        saved()  # and gone, with copies under way
        device.link()
        torch.accelerator.synchronize(KIND)
        locked.append(device.pinned())
    assert locked[-1] == locked[1]
    kept.sum().backward()


def chain(stash: ts.Stash, length: int) -> Tensor:
    leaf = torch.full((1024,), 0.5).to(KIND).requires_grad_()
    x = leaf
    with stash:
        for _ in range(length):
            x = x.sin()
    x.sum().backward()
    assert leaf.grad is not None
    return leaf.grad.cpu()


def test_copies_go_in_groups_that_wait_and_end_together(monkeypatch: pytest.MonkeyPatch) -> None:
    stash, length, copies, events = ts.stash("cpu_offload", framework="torch", min_bytes=0), 256, [0], [0]

    def counted(method: Callable[..., Any], counts: list[int], more: Callable[..., int]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            counts[0] += more(*arguments)
            return method(*arguments)

        return call

    for way in ("copy_out", "copy_in"):
        method = counted(getattr(DeviceStreams, way), copies, lambda streams, sources, *others: len(sources))
        monkeypatch.setattr(DeviceStreams, way, method)
    monkeypatch.setattr(DeviceStreams, "recorded", staticmethod(counted(DeviceStreams.recorded, events, lambda _: 1)))
    expected = chain(ts.stash("keep", framework="torch"), length)
    for _ in range(3):
        copies[0] = events[0] = 0
        assert torch.equal(chain(stash, length), expected)
    assert copies[0] > 1.5 * length
    assert events[0] < copies[0] / 2  # one by one, each copy takes two


def test_a_tensor_that_cannot_be_read_leaves_the_others_of_its_group_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    one = session_of(offloaded(2**20, min_bytes=0))
    leaf = torch.randn(3, 32, 32).to(KIND)
    expected = [part.cpu() * 2 for part in leaf]

    def refuse(*_: object) -> Any:
        raise RuntimeError("no")

    with one.scope():
        handles = [one.pack(tensor) for tensor in (leaf[0] * 2, (leaf[1] * 2).t(), leaf[2] * 2)]
    with monkeypatch.context() as patch:
        patch.setattr(layout, "dense", refuse)
        with pytest.raises(StashError, match=r"reading float32.* raised RuntimeError: no"):
            one.drain()
    assert [torch.equal(one.unpack(handles[n]).cpu(), expected[n]) for n in (0, 2)] == [True, True]
    assert one.stats().live.tensors == 2


def test_bytes_that_an_interrupt_has_left_in_a_budget_stop_no_copy() -> None:
    limits = ts.Limits(in_flight="20KiB", ahead=0)
    one = session_of(ts.stash(ts.CpuOffload(), framework="torch", min_bytes=0, limits=limits))
    assert one.sender.transfers is not None
    budget = one.sender.transfers.out_budget
    budget.taken = budget.limit
    tensor = torch.full((1000,), 2.0).to(KIND)
    with one.scope():
        handle = one.pack(tensor * 1)
    assert torch.equal(one.unpack(handle), tensor)
    assert budget.taken <= 4000


def test_the_doctor_tells_the_rate_of_the_link_and_the_limit_of_locked_memory(device: Simulated) -> None:
    device.link(bandwidth=2**30)
    *names, link = accelerators()
    assert names == devices()
    assert float(link.partition(" MiB/s to the host")[0]) <= 1024
