"""Threads that share a model and a session, and a thread that lets go of what another one has saved."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from queue import SimpleQueue

import pytest
import torch
from memory_programs import LIMITS, POLICIES
from torch import nn

import tensorstash as ts
from tensorstash.backends.torch.backend import TorchBackend
from tensorstash.policies import StoreIn
from tensorstash.stores import Memory


def on_threads(works: list[Callable[[], object]]) -> None:
    """Run all at once; raise what any has raised."""
    with ThreadPoolExecutor(len(works)) as pool:
        for future in [pool.submit(work) for work in works]:
            future.result(120)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 8)
        self.register_buffer("scale", torch.full((32,), 0.5))

    def forward(self, x):
        hidden = (self.first(x) * self.scale).tanh()
        return self.second(nn.functional.gelu(hidden) * hidden) + x


def steps(model, index, scope=None, meet=lambda: None):
    """Train without an update; the threads meet between forward and backward."""
    found = []
    for step in range(2):
        x = torch.randn(6, 8, generator=torch.Generator().manual_seed(10 * index + step))
        meet()
        with scope or nullcontext():
            loss = model(model(x * 1.0)).square().sum()
        meet()
        found += torch.autograd.grad(loss, list(model.parameters()))
    return found


@pytest.mark.parametrize(
    ("policy", "limits"), [*zip(POLICIES, ["tiny", "default", "synchronous", "tiny"], strict=True)]
)
def test_forwards_on_two_threads_share_a_model_and_a_session_that_a_third_drains(policy, limits, tmp_path, same_bits):
    torch.manual_seed(0)
    model = Model()
    plain = [steps(model, index) for index in range(2)]
    stash = ts.stash(POLICIES[policy](str(tmp_path)), framework="torch", min_bytes=0, limits=LIMITS[limits])
    found: list = [None, None]
    done: list[int] = []
    barrier = threading.Barrier(2, timeout=400)

    def work(index):
        try:
            found[index] = steps(model, index, stash, barrier.wait)
        finally:
            done.append(index)

    def drain():
        while len(done) < 2:
            stash.drain()

    on_threads([lambda: work(0), lambda: work(1), drain])
    assert all(map(same_bits, plain, found))
    assert stash.stats().stashed.tensors > 0


@pytest.mark.parametrize("when", ["before it counts", "after it has counted"])
@pytest.mark.parametrize("limits", LIMITS)
def test_a_tensor_is_let_go_of_on_another_thread_while_the_session_looks(when, limits, monkeypatch, same_bits):
    """Every look is met by another thread, which writes into the oldest thing that it holds, and lets go of it."""
    held: list[tuple[int, torch.Tensor]] = []
    written: list[int] = []
    asked: SimpleQueue[bool] = SimpleQueue()
    answered: SimpleQueue[None] = SimpleQueue()
    count = TorchBackend.holders

    def release():
        asked.put(True)
        answered.get(timeout=400)

    def counted(backend, tensor):
        if when == "before it counts":
            release()
        found = count(backend, tensor)
        if when == "after it has counted":
            release()
        return found

    def other():
        while asked.get(timeout=400):
            if len(held) > 2:  # the forward pass has done with all but the latest
                number, tensor = held.pop(0)
                tensor.data.fill_(2.0)
                written.append(number)
                del tensor
            answered.put(None)

    def forward(leaf, hold):
        total = torch.zeros(())
        x = (leaf * 1.0).sigmoid()
        for number in range(0, 24, 2):
            x = x.detach() * leaf
            hold((number, x))
            x = x.exp()
            hold((number + 1, x))
            total = total + x.tanh().sum()
        return total

    torch.manual_seed(0)
    leaf = torch.randn(6, 20, requires_grad=True)
    thread = threading.Thread(target=other)
    thread.start()
    try:
        with monkeypatch.context() as patched:
            patched.setattr(TorchBackend, "holders", counted)
            with ts.stash(StoreIn(Memory()), framework="torch", min_bytes=0, limits=LIMITS[limits]):
                loss = forward(leaf, held.append)
            held.clear()
            loss.backward()
    finally:
        asked.put(False)
        thread.join(60)
    assert len(written) > 5
    plain, everything = leaf.detach().clone().requires_grad_(), {}
    loss = forward(plain, lambda pair: everything.update([pair]))
    for number in written:
        everything[number].data.fill_(2.0)
    loss.backward()
    assert same_bits([plain.grad], [leaf.grad])
