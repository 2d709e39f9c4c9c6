"""What a pair of hooks costs per saved tensor that is kept, in PyTorch, beside a pair that does nothing.

    python tests/bench/hook_cost_torch.py

Cost is the time of forward and backward above the same without hooks, divided by the number of saved tensors. All
variants of a program run interleaved, round by round; the median of all rounds counts.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

import tensorstash as ts

SAVES = 200
ROUNDS = 300


def activations(size: int) -> Callable[[], Tensor]:
    """A chain of operations, each of which saves its input."""
    start = torch.randn(size, requires_grad=True)

    def forward() -> Tensor:
        x = start
        for _ in range(SAVES):
            x = x.sin()
        return x

    return forward


def weights(size: int) -> Callable[[], Tensor]:
    """A chain of operations, each of which saves a frozen parameter, or a view of one."""
    start = torch.randn(size, requires_grad=True)
    parameter = nn.Parameter(torch.randn(size), requires_grad=False)
    view = parameter.view(size)

    def forward() -> Tensor:
        x = start
        for _ in range(SAVES // 2):
            x = x * parameter * view
        return x

    return forward


def identity() -> AbstractContextManager[object]:
    return saved_tensors_hooks(lambda x: x, lambda x: x)


CASES: dict[str, tuple[Callable[[], Tensor], Callable[[], AbstractContextManager[object]]]] = {
    "parameters and their views, under Compress": (weights(64), lambda: ts.stash(ts.Compress(), min_bytes=0)),
    "tensors below min_bytes, under Compress": (activations(64), lambda: ts.stash(ts.Compress())),
    "tensors of any size, under Keep": (activations(64), lambda: ts.stash(ts.Keep(), min_bytes=0)),
    "tensors in host memory already, under CpuOffload": (
        activations(64),
        lambda: ts.stash(ts.CpuOffload(), min_bytes=0),
    ),
}


def seconds(forward: Callable[[], Tensor], around: AbstractContextManager[object]) -> float:
    """Time one forward and backward."""
    started = perf_counter()
    with around:
        y = forward()
    torch.autograd.backward(y.sum())
    return perf_counter() - started


def costs(forward: Callable[[], Tensor], ours: AbstractContextManager[object]) -> tuple[float, float, float]:
    """Return microseconds per saved tensor: without hooks (all of it), and on top of that identity and ours."""
    found: list[tuple[float, ...]] = []
    for _ in range(ROUNDS):
        scopes: tuple[AbstractContextManager[object], ...] = (nullcontext(), identity(), ours)
        found.append(tuple(seconds(forward, scope) for scope in scopes))
    plain, by_identity, by_ours = (1e6 * median(column) / SAVES for column in zip(*found, strict=True))
    return plain, by_identity - plain, by_ours - plain


def main() -> None:
    """Print one line per case."""
    torch.set_num_threads(1)
    print(f"{'microseconds per saved tensor':<50} no hooks  + identity  + ours  ours / identity")
    for name, (forward, scope) in CASES.items():
        plain, by_identity, by_ours = costs(forward, scope())
        print(f"{name:<50} {plain:8.2f}  {by_identity:10.2f}  {by_ours:6.2f}  {by_ours / by_identity:15.2f}")


if __name__ == "__main__":
    main()
