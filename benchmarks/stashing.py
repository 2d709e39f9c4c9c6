"""What a saved tensor costs that is stashed, beyond the copy of its bytes.

    python -m benchmarks stashing
    python -m benchmarks stashing --framework torch --many 50000

A chain of operations saves tensors of one size. Cost is the time of forward (a pack) and of backward (an unpack) above
the same without hooks, less a bare copy of as many bytes by the framework, divided by the number of saved tensors. All
variants take turns, round by round; the median of all rounds counts. *At once* means that nothing is done behind the
program (``Limits(in_flight=0, ahead=0)``); else what workers do is waited for. Each framework, and the simulated device
of the tests, has a process of its own, with one thread for computing.
"""

import argparse
import gc
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from itertools import pairwise
from statistics import median
from time import perf_counter
from types import FrameType
from typing import Any

import tensorstash as ts
from benchmarks.harness.labs import lab_of
from benchmarks.harness.report import Report, machine
from benchmarks.harness.runner import alone, interleave
from benchmarks.hooks import chain
from tensorstash.stores import Memory
from tensorstash.testing.layouts import floats

KINDS = {"torch": ("torch", "cpu"), "paddle": ("paddle", "cpu"), "sim": ("torch", "sim:0")}
"""Framework and device of each process."""

AT_ONCE = ts.Limits(in_flight=0, ahead=0)

Scope = Callable[[], AbstractContextManager[Any]]
Times = tuple[float, float]


class Program:
    """A chain of operations, each of which saves its input.

    Args:
        framework: whose operations.
        device: where they run.
        elements: of each tensor, in float32.
    """

    def __init__(self, framework: str, device: str, elements: int) -> None:
        self._lab: Any = lab_of(framework)
        if device.startswith("sim"):
            from benchmarks.harness.torch_accelerator import accelerator_named

            self._synchronize: Callable[[], object] = accelerator_named(device).synchronize
            self._start = self._lab.tensor(floats(elements)).to(device).requires_grad_()
        else:
            self._synchronize = bool
            self._start = self._lab.tensor(floats(elements), requires_grad=True)

    def copy(self) -> object:
        """Copy one tensor's bytes within its device."""
        return self._start.detach().clone()

    def passes(self, scope: Scope, saves: int) -> Times:
        """Return the seconds of a forward and of its backward."""
        started = perf_counter()
        with scope():
            result = chain(self._start, _sine, saves)
        self._synchronize()
        half = perf_counter()
        result.sum().backward()
        self._synchronize()
        return half - started, perf_counter() - half

    def copying(self, count: int) -> float:
        """Return the seconds that so many copies take."""
        started = perf_counter()
        for _ in range(count):
            self.copy()
        self._synchronize()
        return perf_counter() - started

    def thousands(self, scope: Scope, saves: int, every: int) -> tuple[list[float], list[float]]:
        """Return the seconds that each ``every`` tensors take, in forward and in backward."""
        forward, backward = [perf_counter()], []
        with scope():
            x = self._start
            for _ in range(saves // every):
                x = chain(x, _sine, every)
                x.register_hook(lambda gradient: backward.append(perf_counter()))
                forward.append(perf_counter())
        x.sum().backward()
        backward.append(perf_counter())
        return _lengths(forward), _lengths(backward)


def _sine(x: Any) -> Any:
    return x.sin()


def _lengths(moments: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(moments)]


class Calls:
    """Counts calls of Python functions, by direction and by whether they are the program's or of another thread."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._is_on = False
        threading.setprofile(self._note)  # for all threads that start from now on

    def of(self, call: Callable[[], object]) -> Counter[str]:
        """Return what a call has called here, and what was called meanwhile by others."""
        self.counts.clear()
        self._is_on = True
        self.join()
        try:
            call()
        finally:
            sys.setprofile(None)
            self._is_on = False
        return Counter(self.counts)

    def join(self, *_: object) -> None:
        """Count what this thread calls from now on: that of a device's backward is not of Python."""
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and self._is_on:
            is_worker = threading.current_thread().name.startswith("tensorstash-")
            self.counts["others" if is_worker else "here"] += 1


def policies(kind: str) -> dict[str, tuple[ts.HookPolicy, ts.Limits]]:
    """Return what is measured, by name."""
    if kind == "sim":
        return {"CpuOffload": (ts.CpuOffload(), ts.Limits())}
    found: dict[str, ts.HookPolicy] = {
        "host memory": ts.StoreIn(Memory()),
        "Quantize(8)": ts.Quantize(bits=8),
        "DiskSpill": ts.DiskSpill(),
    }
    return {
        f"{name}{behind}": (policy, limits)
        for name, policy in found.items()
        for behind, limits in ((", at once", AT_ONCE), ("", ts.Limits()))
    }


def costs(kind: str, nbytes: int, saves: int, rounds: int, many: int) -> Generator[list[Any] | None, None, None]:
    """Yield a row for each policy: microseconds per pack and unpack, Python calls, growth."""
    framework, device = KINDS[kind]
    calls = Calls()
    program = Program(framework, device, nbytes // 4)
    scopes: dict[str, Scope] = {"none": nullcontext}
    if framework == "torch":
        save_on_cpu = import_module("torch.autograd.graph").save_on_cpu
        scopes["save_on_cpu"] = lambda: save_on_cpu(pin_memory=kind == "sim")
    for name, (policy, limits) in policies(kind).items():
        session = ts.stash(policy, framework=framework, limits=limits)
        scopes[name] = lambda session=session: session  # type: ignore[misc]
    yield None
    found = interleave({name: partial(_once, program, scope, saves) for name, scope in scopes.items()}, rounds)
    copy = median(interleave({"copy": partial(program.copying, saves)}, rounds)["copy"])
    plain = [median(times) for times in zip(*found.pop("none"), strict=True)]
    for name, times in found.items():
        each = zip(zip(*times, strict=True), plain, strict=True)
        beyond = [1e6 * (median(some) - base - copy) / saves for some, base in each]
        pack, back, growth = Counter[str](), Counter[str](), [0.0, 0.0]
        if name != "save_on_cpu":
            pack, back = calls_of(calls, program, scopes[name], saves)
            growth = grown(program, scopes[name], many) if many else growth
        yield [
            name,
            1e6 * copy / saves,
            *beyond,
            *(counts[who] / saves for counts in (pack, back) for who in ("here", "others")),
            *growth,
        ]


def _once(program: Program, scope: Scope, saves: int) -> Times:
    gc.collect()
    return program.passes(scope, saves)


def calls_of(calls: Calls, program: Program, scope: Scope, saves: int) -> tuple[Counter[str], Counter[str]]:
    """Return the calls of a forward and of a backward, less those of the same without hooks."""
    found = []
    for some in (nullcontext, scope):
        results: list[Any] = []

        def forward(some: Scope = some, results: list[Any] = results) -> None:
            with some():
                results.append(chain(program._start, _sine, saves))

        def backward(results: list[Any] = results) -> None:
            result = results.pop().sum()
            result.register_hook(calls.join)
            result.backward()

        found.append((calls.of(forward), calls.of(backward)))
    (forward_plain, backward_plain), (forward_ours, backward_ours) = found
    return forward_ours - forward_plain, backward_ours - backward_plain


def grown(program: Program, scope: Scope, many: int) -> list[float]:
    """Return what the last thousand of many saved tensors take, in multiples of the first, there and back."""
    every = min(1000, many // 4)
    there, back = program.thousands(scope, many, every)
    # What was saved last comes first. The first of each pays for what is made once.
    return [median(there[-3:]) / median(there[1:4]), median(back[-4:-1]) / median(back[1:4])]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--framework", action="append", choices=KINDS)
    parser.add_argument("--kib", type=int, default=80, help="size of a tensor, in KiB")
    parser.add_argument("--saves", type=int, default=200, help="saved tensors of a program")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--many", type=int, default=0, help="saved tensors to look for growth with; 0 for none")


def main(options: argparse.Namespace, report: Report) -> int:
    kinds = options.framework or list(KINDS)
    report.conditions = machine({"torch" if KINDS[kind][0] == "torch" else "paddlepaddle" for kind in kinds})
    report.legend = (
        "Microseconds per saved tensor beyond a bare copy of its bytes, whose own are given; calls of Python functions "
        "per tensor, by the program's thread + by others; time of the last thousand of many in multiples of the first."
    )
    heads = ("on", "policy", "copy", "pack", "unpack", "calls, pack", "calls, unpack", "growth, pack", "growth, unpack")
    report.begin(*heads, left=heads[:2])
    rows = report.measured["rows"] = []
    for kind in kinds:

        def add(found: list[Any], kind: str = kind) -> None:
            rows.append([kind, *found])
            name, *numbers = found
            copy, pack, back, pack_here, pack_others, back_here, back_others, *growth = numbers
            cells = [f"{pack_here:.0f} + {pack_others:.0f}", f"{back_here:.0f} + {back_others:.0f}"]
            factors = [f"{factor:.2f}" if factor else "" for factor in growth]
            report.row(kind, name, f"{copy:.1f}", f"{pack:.1f}", f"{back:.1f}", *cells, *factors)

        sizes = {name: getattr(options, name) for name in ("saves", "rounds", "many")}
        alone("stashing:costs", f"stashing, {kind}", add, kind=kind, nbytes=options.kib * 2**10, **sizes)
    return 0
