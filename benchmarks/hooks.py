"""What a saved tensor costs beyond the copy of its bytes: one that is kept, and one that is stashed.

    python -m benchmarks hooks --framework torch --many 50000

A chain of operations saves tensors of one size: small ones and parameters, which are kept, beside a pair of hooks that
does nothing; and larger ones, which are stashed. Cost is the time of forward (a pack) and of backward (an unpack) above
the same without hooks, less that of hooks that copy what is stashed each way, divided by the number of saved tensors.
All variants of a program take turns; the median of all rounds counts. *At once* means that nothing is done behind the
program (``Limits(in_flight=0, ahead=0)``); else what workers do is waited for. Each framework, and the simulated device
of the tests, has a process of its own, with one thread for computing, whose time counts for what Paddle keeps.
"""

import argparse
import gc
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from operator import methodcaller
from statistics import median
from time import perf_counter, thread_time
from types import FrameType
from typing import Any

import tensorstash as ts
from benchmarks.harness.report import Report, columns
from benchmarks.harness.runner import alone, interleave
from tensorstash.stores import Memory
from tensorstash.testing.labs import lab_of
from tensorstash.testing.layouts import floats

KINDS = {"torch": ("torch", "cpu"), "paddle": ("paddle", "cpu"), "sim": ("torch", "sim:0")}
"""Framework and device of each process."""

COLUMNS = columns("""
    on | saved | under | copy, pack:.1f | copy, unpack:.1f | pack:.2f | unpack:.2f | calls, pack:> | calls, unpack:> |
    growth, pack:.2f | growth, unpack:.2f
""")
LEGEND = """\
Microseconds per saved tensor beyond hooks that copy it within its device, whose own are given; calls of Python
functions per tensor, by the program's thread + by others; what each of many takes in multiples of each of a tenth as
many."""

Scope = Callable[[], AbstractContextManager[Any]]
Times = tuple[float, float]

PARAMETERS, SMALL, LARGE = "parameters", "small tensors", "large tensors"
COPIES = "copies"


class Program:
    """A chain of operations on tensors of so many elements, each of which saves its input.

    Where parameters are to be saved: a frozen one and a view of it in PyTorch, an activation and a parameter in Paddle.
    """

    def __init__(self, framework: str, device: str, saved: str, elements: int) -> None:
        lab: Any = lab_of(framework)
        self._clock = thread_time if framework == "paddle" and saved != LARGE else perf_counter
        self._synchronize: Callable[[], object] = bool
        self._start = lab.tensor(floats(elements), requires_grad=True)
        if device.startswith("sim"):
            from benchmarks.harness.torch_accelerator import accelerator_named

            self._synchronize = accelerator_named(device).synchronize
            self._start = lab.tensor(floats(elements)).to(device).requires_grad_()
        self._saves = 2 if saved == PARAMETERS else 1  # tensors, by each link
        if saved != PARAMETERS:
            self._link: Callable[[Any], Any] = methodcaller("sin")
            return
        parameter = lab.parameter(floats(elements), trainable=framework == "paddle")
        view = parameter.view(elements) if framework == "torch" else None
        self._link = lambda x: x * parameter if view is None else x * parameter * view

    def passes(self, scope: Scope, saves: int, clock: Callable[[], float] | None = None) -> Times:
        """Return the seconds of a forward and of its backward, or what else a clock counts."""
        clock = clock or self._clock
        for _ in range(2):  # the second counts: the first has taken back what memory and caches held for others
            gc.collect()
            started, x = clock(), self._start
            with scope():
                for _ in range(saves // self._saves):
                    x = self._link(x)
            self._synchronize()
            half, result = clock(), x.sum()
            if (note := sys.getprofile()) is not None:
                result.register_hook(lambda _, note=note: sys.setprofile(note))  # a device's backward is another's
            result.backward()
            self._synchronize()
            del x, result
        return half - started, clock() - half


class Calls:
    """Counts calls of Python functions while its context lasts, by whose thread they are."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(("here", "others"), 0)
        self._is_on = False
        threading.setprofile(self._note)  # for all threads that start from now on

    def __enter__(self) -> None:
        self._is_on = True
        sys.setprofile(self._note)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        self._is_on = False

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and self._is_on:
            is_worker = threading.current_thread().name.startswith("tensorstash-")
            self.counts["others" if is_worker else "here"] += 1

    def of(self, program: Program, scope: Scope, saves: int) -> list[str]:
        """Return the calls per tensor of a forward and of a backward, less those of the same without hooks."""
        found: list[list[str]] = [[], []]
        for who in self.counts:
            with self:
                count = partial(self.counts.__getitem__, who)
                plain, ours = (program.passes(each, saves, count) for each in (nullcontext, scope))
            for way in (0, 1):
                found[way].append(f"{max(ours[way] - plain[way], 0) / saves:.0f}")
        return [" + ".join(some) for some in found]


def scopes(kind: str) -> Mapping[str, Mapping[str, Scope]]:
    """Return what is measured, by what is saved and by name."""
    framework, _ = KINDS[kind]
    graph = import_module("torch.autograd.graph" if framework == "torch" else "paddle.autograd")

    def under(policy: ts.HookPolicy, **options: Any) -> Scope:
        session = ts.stash(policy, framework=framework, **options)
        return lambda: session

    copies = {COPIES: lambda: graph.saved_tensors_hooks(*[lambda x: x.detach().clone()] * 2)}
    if kind == "sim":
        pinned = partial(graph.save_on_cpu, pin_memory=True)
        return {LARGE: {**copies, "save_on_cpu": pinned, "CpuOffload": under(ts.CpuOffload())}}
    identity = {"a pair that does nothing": lambda: graph.saved_tensors_hooks(lambda x: x, lambda x: x)}
    # In PyTorch nothing but parameters is saved: none is to be kept for its size.
    parameters = under(ts.Compress(), **({"min_bytes": 0} if framework == "torch" else {}))
    small = {
        "Compress, which keeps what is small": under(ts.Compress()),
        "Keep": under(ts.Keep(), min_bytes=0),
        "CpuOffload, in host memory already": under(ts.CpuOffload(), min_bytes=0),
    }
    stashed = {"host memory": ts.StoreIn(Memory()), "Quantize(8)": ts.Quantize(bits=8), "DiskSpill": ts.DiskSpill()}
    large = {**copies, "save_on_cpu": graph.save_on_cpu} if kind == "torch" else copies
    for name, policy in stashed.items():
        large[f"{name}, at once"] = under(policy, min_bytes=0, limits=ts.Limits(in_flight=0, ahead=0))
        large[name] = under(policy, min_bytes=0)
    return {PARAMETERS: {**identity, "Compress": parameters}, SMALL: {**identity, **small}, LARGE: large}


def costs(kind: str, nbytes: int, saves: int, rounds: int, many: int) -> Generator[list[Any] | None, None, None]:
    """Yield the rows of a framework, or of the simulated device."""
    framework, device = KINDS[kind]
    calls, measured = Calls(), scopes(kind)
    gc.freeze()  # what is imported, which each pass would look through
    yield None
    for saved, chosen in measured.items():
        program = Program(framework, device, saved, nbytes // 4 if saved == LARGE else 64)
        every = {"none": nullcontext, **chosen}
        passes = {name: partial(program.passes, scope, saves) for name, scope in every.items()}
        found = interleave(passes, rounds if saved == LARGE else 10 * rounds)  # what is kept takes a tenth of the time
        plain = [median(times) for times in zip(*found.pop("none"), strict=True)]
        copies = [median(times) for times in zip(*found.pop(COPIES), strict=True)] if saved == LARGE else plain
        given = [1e6 * (copy - base) / saves or None for copy, base in zip(copies, plain, strict=True)]
        for name, times in found.items():
            both = zip(zip(*times, strict=True), copies, strict=True)
            beyond = [1e6 * (median(some) - base) / saves for some, base in both]
            counted = calls.of(program, chosen[name], saves)
            is_growing = many and saved == LARGE and name != "save_on_cpu"
            growth = grown(program, chosen[name], many) if is_growing else [None, None]
            yield [kind, saved, name, *given, *beyond, *counted, *growth]


def grown(program: Program, scope: Scope, many: int) -> list[float]:
    """Return what each of many saved tensors takes, there and back, in multiples of each of a tenth as many."""
    counts = (max(many // 10, 1), many)
    times = interleave({saves: partial(program.passes, scope, saves) for saves in counts}, 3)
    few, all_of_them = ([median(some) / saves for some in zip(*times[saves], strict=True)] for saves in counts)
    return [later / first for first, later in zip(few, all_of_them, strict=True)]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--framework", action="append", choices=KINDS)
    parser.add_argument("--kib", type=int, default=80, help="size of a tensor that is stashed, in KiB")
    parser.add_argument("--saves", type=int, default=200, help="saved tensors of a program")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--many", type=int, default=0, help="saved tensors to look for growth with; 0 for none")


def main(options: argparse.Namespace, report: Report) -> None:
    report.legend = LEGEND
    report.begin(COLUMNS)
    sizes = {"nbytes": options.kib * 2**10, "saves": options.saves, "rounds": options.rounds, "many": options.many}
    for kind in options.framework or KINDS:
        alone("hooks:costs", f"hooks, {kind}", report.row, kind=kind, **sizes)
