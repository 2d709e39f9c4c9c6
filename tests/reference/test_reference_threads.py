"""Threads that differentiate at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tensorstash.reference import tensor

WORKERS = 4


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
