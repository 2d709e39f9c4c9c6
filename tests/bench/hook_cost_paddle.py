"""What a pair of hooks costs per saved tensor that is kept, in Paddle, beside a pair that does nothing.

    python tests/bench/hook_cost_paddle.py

Cost is the time of forward and backward above the same without hooks, divided by the number of saved tensors. All
variants of a program run interleaved, round by round; the median of all rounds counts.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from time import thread_time

import paddle
from paddle import Tensor
from paddle.autograd import saved_tensors_hooks

import tensorstash as ts

SAVES = 200
ROUNDS = 300


def activations(size: int) -> Callable[[], Tensor]:
    """A chain of operations, each of which saves its input."""
    start = paddle.randn([size])
    start.stop_gradient = False

    def forward() -> Tensor:
        x = start
        for _ in range(SAVES):
            x = x.sin()
        return x

    return forward


def weights(size: int) -> Callable[[], Tensor]:
    """A chain of operations, each of which saves an activation and a parameter."""
    start = paddle.randn([size])
    start.stop_gradient = False
    parameter = paddle.create_parameter([size], "float32")

    def forward() -> Tensor:
        x = start
        for _ in range(SAVES // 2):
            x = x * parameter
        return x

    return forward


def identity() -> AbstractContextManager[object]:
    return saved_tensors_hooks(lambda x: x, lambda x: x)


CASES: dict[str, tuple[Callable[[], Tensor], Callable[[], AbstractContextManager[object]]]] = {
    "parameters and activations, under Compress": (weights(64), lambda: ts.stash(ts.Compress())),
    "tensors below min_bytes, under Compress": (activations(64), lambda: ts.stash(ts.Compress())),
    "tensors of any size, under Keep": (activations(64), lambda: ts.stash(ts.Keep(), min_bytes=0)),
    "tensors in host memory already, under CpuOffload": (
        activations(64),
        lambda: ts.stash(ts.CpuOffload(), min_bytes=0),
    ),
}


def seconds(forward: Callable[[], Tensor], around: AbstractContextManager[object]) -> float:
    """Return what one forward and backward take of this thread's processor time."""
    started = thread_time()
    with around:
        y = forward()
    y.sum().backward()
    del y
    return thread_time() - started


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
    print(f"{'microseconds per saved tensor':<50} no hooks  + identity  + ours  ours / identity")
    for name, (forward, scope) in CASES.items():
        plain, by_identity, by_ours = costs(forward, scope())
        print(f"{name:<50} {plain:8.2f}  {by_identity:10.2f}  {by_ours:6.2f}  {by_ours / by_identity:15.2f}")


if __name__ == "__main__":
    main()
