"""The device path on CUDA devices: the contract, streams, and what programs do with both.

Not collected where there is no device; the orders themselves are proved without one, by simulated streams.
"""

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import GPT2Config, GPT2LMHeadModel

import tensorstash as ts
from tensorstash.backends.torch.recipes.digests import device_digest
from tensorstash.backends.torch.streams import DeviceStreams
from tensorstash.errors import BackendError
from tensorstash.policies.limits import Limits
from tests.device.models import Attention, gradients, made

pytestmark = pytest.mark.gpu

TIGHT = Limits(in_flight="1 MiB", ahead="1 MiB")
AT_ONCE = Limits(in_flight=0, ahead=0)


def stash(limits: Limits = TIGHT) -> ts.Stash:
    return ts.stash(ts.CpuOffload(), framework="torch", limits=limits, min_bytes=0)


@contextmanager
def no_synchronisation() -> Iterator[None]:
    """Refuse every call that makes the host wait for the device."""
    torch.cuda.synchronize()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a prototype
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_host_never_waits_for_the_device() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*(Attention(256) for _ in range(4))).to("cuda:0")
    x, scope = torch.randn(4, 128, 256, device="cuda:0"), stash(Limits())
    for attempt in range(3):
        with no_synchronisation() if attempt == 2 else nullcontext():  # pages are locked by then
            with scope:
                loss = net(x).square().mean()
            loss.backward()
        torch.cuda.synchronize()


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


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


def test_blocks_with_flash_attention_are_computed_again() -> None:
    network, x = nn.TransformerEncoderLayer(64, 2, batch_first=True, dtype=torch.bfloat16), torch.randn(2, 64, 64)
    stack = nn.TransformerEncoder(network, 4, enable_nested_tensor=False).to("cuda:0").train()
    noise = [torch.full((8,), value, dtype=torch.uint64, device="cuda") for value in range(64)]
    del noise  # unwritten memory holds it from now on
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), ts.wrap(stack, "checkpoint") as handle:
        stack(x.to("cuda:0", torch.bfloat16)).float().square().mean().backward()
    assert set(handle.stats().blocks) == {"checkpointed"}


@pytest.mark.parametrize("policy", ["checkpoint", "checkpoint | cpu_offload", "recompute | cpu_offload"])
@pytest.mark.usefixtures("deterministic")
def test_wrapped_transformers_train_the_same_under_autocast(policy: str) -> None:
    config = GPT2Config(n_layer=4, n_embd=128, n_head=4, vocab_size=500, use_cache=False, attn_implementation="eager")
    torch.manual_seed(0)
    network = GPT2LMHeadModel(config).to("cuda:0").train()
    tokens = torch.randint(0, 500, (4, 64), device="cuda:0")

    def losses() -> list[bytes]:
        found = []
        for step in range(4):
            torch.manual_seed(step)
            with torch.autocast("cuda", torch.bfloat16):
                loss = network(input_ids=tokens, labels=tokens).loss
            loss.backward()
            found += [p.grad.cpu().numpy().tobytes() for p in network.parameters() if p.grad is not None]
            network.zero_grad(set_to_none=True)
        return found

    expected = losses()
    for budget in (None, "4MiB"):
        with ts.wrap(network, policy, min_bytes=0, budget=budget):
            assert losses() == expected


@pytest.mark.parametrize("policy", ["cpu_offload", "recompute | cpu_offload", "quantize:bits=8 | cpu_offload"])
@pytest.mark.usefixtures("deterministic")
def test_no_gradient_depends_on_when_copies_end(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, batch = made("language", "cuda:0")
    if policy.startswith("quantize"):
        waiting = ts.stash(policy, framework="torch", min_bytes=0, limits=AT_ONCE)
        expected = gradients(network, batch, lambda: waiting, steps=2)
    else:
        expected = gradients(network, batch, steps=2)
    dice = random.Random(0)

    def late(copy: Any) -> Any:
        def run(self: DeviceStreams, sources: Any, targets: Any, stream: torch.Stream) -> None:
            with stream:
                torch.cuda._sleep(dice.choice([0, 0, 10_000, 1_000_000]))
            copy(self, sources, targets, stream)

        return run

    for way in ("copy_out", "copy_in"):
        monkeypatch.setattr(DeviceStreams, way, late(getattr(DeviceStreams, way)))
    for _ in range(20):
        limits = Limits(in_flight=dice.choice([0, 20_000, 2**20]), ahead=dice.choice([0, 20_000, 2**20]))
        one = ts.stash(policy, framework="torch", min_bytes=0, limits=limits)
        assert gradients(network, batch, lambda one=one: one, steps=2) == expected


def test_a_digest_of_a_card_depends_on_every_bit_and_its_place() -> None:
    for dtype in (torch.bool, torch.uint8, torch.bfloat16, torch.float32, torch.float64, torch.complex64):
        one = torch.randint(0, 2, (10_007,), device="cuda").to(dtype)
        bits, before = one.view(torch.uint8), device_digest(one)
        assert torch.equal(before, device_digest(one.clone()))
        bits[-1] ^= 1
        assert not torch.equal(before, device_digest(one))
        bits[-1] ^= 1
        one[:] = one.flip(0)
        assert not torch.equal(before, device_digest(one))
