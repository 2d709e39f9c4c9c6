"""What hooks cost per saved tensor that is kept, beside a pair that does nothing.

    python -m benchmarks hooks
    python -m benchmarks hooks --framework paddle

Cost is the time of forward and backward above the same without hooks, divided by the number of saved tensors. All
variants of a program take turns, round by round; the median of all rounds counts. Each framework has a process of its
own, with one thread for computing; in Paddle the processor time of that thread is counted.
"""

import argparse
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from statistics import median
from time import perf_counter, thread_time
from typing import Any

import tensorstash as ts
from benchmarks.harness.labs import lab_of
from benchmarks.harness.report import Report, machine
from benchmarks.harness.runner import alone, interleave
from tensorstash.testing.layouts import floats

FRAMEWORKS = {"torch": "torch", "paddle": "paddlepaddle"}
HOOKS = {"torch": "torch.autograd.graph", "paddle": "paddle.autograd"}
CLOCKS = {"torch": perf_counter, "paddle": thread_time}
SIZE = 64

CASES: dict[str, tuple[str, ts.HookPolicy, int | None]] = {
    "parameters, under Compress": ("weights", ts.Compress(), None),
    "tensors below min_bytes, under Compress": ("activations", ts.Compress(), None),
    "tensors of any size, under Keep": ("activations", ts.Keep(), 0),
    "tensors in host memory already, under CpuOffload": ("activations", ts.CpuOffload(), 0),
}
"""Program, policy and ``min_bytes``, if not the default."""


def program(framework: str, kind: str, saves: int) -> Callable[[], Any]:
    """Return the forward of a chain of operations.

    Each saves its input (``"activations"``); or a frozen parameter, or a view of one, in PyTorch, and an activation and
    a parameter in Paddle (``"weights"``).
    """
    lab: Any = lab_of(framework)
    start = lab.tensor(floats(SIZE), requires_grad=True)
    if kind == "activations":
        return lambda: chain(start, lambda x: x.sin(), saves)
    parameter = lab.parameter(floats(SIZE), trainable=framework == "paddle")
    if framework == "paddle":
        return lambda: chain(start, lambda x: x * parameter, saves // 2)
    view = parameter.view(SIZE)
    return lambda: chain(start, lambda x: x * parameter * view, saves // 2)


def chain(x: Any, link: Callable[[Any], Any], length: int) -> Any:
    for _ in range(length):
        x = link(x)
    return x


def seconds(clock: Callable[[], float], forward: Callable[[], Any], scope: Callable[[], Any]) -> float:
    """Time one forward and backward."""
    started = clock()
    with scope():
        result = forward()
    result.sum().backward()
    del result
    return clock() - started


def costs(framework: str, saves: int, rounds: int) -> Generator[list[Any] | None, None, None]:
    """Yield microseconds per saved tensor for each case: without hooks, and on top of that identity and ours."""
    hooks = import_module(HOOKS[framework]).saved_tensors_hooks
    yield None
    for name, (kind, policy, least) in CASES.items():
        if kind == "weights" and framework == "torch":
            least = 0  # nothing but parameters is saved: none is to be kept for its size
        session = ts.stash(policy, framework=framework, **({} if least is None else {"min_bytes": least}))
        scopes: list[Callable[[], AbstractContextManager[Any]]] = [
            nullcontext,
            lambda: hooks(lambda x: x, lambda x: x),
            lambda session=session: session,
        ]
        timed = partial(seconds, CLOCKS[framework], program(framework, kind, saves))
        found = interleave({number: partial(timed, scope) for number, scope in enumerate(scopes)}, rounds)
        plain, by_identity, by_ours = (1e6 * median(times) / saves for times in found.values())
        yield [name, plain, by_identity - plain, by_ours - plain]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--framework", action="append", choices=FRAMEWORKS)
    parser.add_argument("--saves", type=int, default=200, help="saved tensors of a program")
    parser.add_argument("--rounds", type=int, default=300)


def main(options: argparse.Namespace, report: Report) -> int:
    frameworks = options.framework or list(FRAMEWORKS)
    report.conditions = machine(FRAMEWORKS[framework] for framework in frameworks)
    report.legend = "Microseconds per saved tensor: forward and backward without hooks, and what hooks add."
    heads = ("framework", "saved", "no hooks", "+ identity", "+ ours", "ours / identity")
    report.begin(*heads, left=heads[:2])
    rows = report.measured["rows"] = []
    for framework in frameworks:

        def add(found: list[Any], framework: str = framework) -> None:
            name, plain, identity, ours = found
            rows.append([framework, *found])
            report.row(framework, name, f"{plain:.2f}", f"{identity:.2f}", f"{ours:.2f}", f"{ours / identity:.2f}")

        sizes = {"saves": options.saves, "rounds": options.rounds}
        alone("hooks:costs", f"hooks, {framework}", add, framework=framework, **sizes)
    return 0
