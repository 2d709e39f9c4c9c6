"""Threads: separate graphs differentiate at once, shared leaves add up, modes belong to their thread."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tensorstash.reference import grad, nn, saved_tensors_hooks, tensor

WORKERS = 4


def step(model: nn.Module, seed: int, together: threading.Barrier) -> list[np.ndarray]:
    inputs = tensor(np.random.default_rng(seed).normal(size=(5, 6)), "float32")
    together.wait(30)
    with saved_tensors_hooks(lambda x: x.host_bits(), tensor):
        loss = (model(inputs) ** 2).sum()
    found = grad(loss, list(model.parameters()))
    return [g.numpy() for g in found if g is not None]


def test_graphs_of_several_threads_do_not_disturb_each_other() -> None:
    generator = np.random.default_rng(0)
    model = nn.Sequential(nn.Linear(6, 8, generator=generator), nn.GELU(), nn.Linear(8, 3, generator=generator))
    alone = [step(model, seed, threading.Barrier(1)) for seed in range(WORKERS)]
    together = threading.Barrier(WORKERS)
    with ThreadPoolExecutor(WORKERS) as pool:
        at_once = list(pool.map(lambda seed: step(model, seed, together), range(WORKERS)))
    for expected, got in zip(alone, at_once, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(expected, got, strict=True))


def test_threads_accumulate_into_a_shared_leaf_without_loss() -> None:
    x = tensor(np.zeros(1000), requires_grad=True)
    together = threading.Barrier(WORKERS)

    def accumulate(_: int) -> None:
        together.wait(30)
        for _ in range(100):
            (x * 1.0).sum().backward()

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(accumulate, range(WORKERS)))
    assert set(x.grad.tolist()) == {100.0 * WORKERS}
