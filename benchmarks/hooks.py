"""Cost of a saved tensor beyond the copy of its bytes: one that is kept, and one that is stashed.

    python -m benchmarks hooks --framework torch

A chain of operations saves tensors of one size: small ones, which are kept, and larger ones, which are stashed. Cost is
the time of forward (a pack) and of backward (an unpack) above the same without hooks, less that of hooks that copy
what is stashed each way, by the number of saved tensors. All variants of a program take turns; the median of all
rounds counts. *At once* means that nothing is done behind the program (``Limits(in_flight=0, ahead=0)``); else work
behind it is waited for. Each framework has a process of its own, with one thread for computing.
"""

import argparse
import gc
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from statistics import median
from time import perf_counter
from types import FrameType
from typing import Any

import tensorstash as ts
from benchmarks.harness.report import Report, columns
from benchmarks.harness.runner import alone, interleave
from benchmarks.harness.torch_accelerator import accelerator_named
from tensorstash.stores import Memory
from tensorstash.testing.labs import lab_of
from tensorstash.testing.layouts import floats

FRAMEWORKS = ("torch", "paddle")
COLUMNS = columns("""
    framework | saved | under | copy, pack:.1f | copy, unpack:.1f | pack:.2f | unpack:.2f | calls, pack:> |
    calls, unpack:>
""")
LEGEND = """\
Microseconds per saved tensor beyond hooks that copy it, whose own are given; calls of Python functions per tensor, by
the program's thread + by others."""

Scope = Callable[[], AbstractContextManager[Any]]
Pair = tuple[float, float]

SMALL, LARGE, COPIES = "small tensors", "large tensors", "copies"


class Program:
    """A chain of operations on tensors of so many elements, each of which saves its input."""

    def __init__(self, framework: str, elements: int, device: str) -> None:
        self._start = lab_of(framework).tensor(floats(elements), device=device, requires_grad=True)

    def passes(self, scope: Scope, saves: int, clock: Callable[[], float] = perf_counter, profile: Any = None) -> Pair:
        """Return the seconds of a forward and of its backward, or another count that a clock has.

        Args:
            scope: around the forward.
            saves: tensors that are saved.
            clock: is asked before and behind each.
            profile: of the thread that runs backward, which on a device is another one.
        """
        for _ in range(2):  # the second counts: the first takes back memory and caches
            gc.collect()
            started, x = clock(), self._start
            with scope():
                for _ in range(saves):
                    x = x.sin()
            half, result = clock(), x.sum()
            if profile is not None:
                result.register_hook(lambda _: sys.setprofile(profile))
            result.backward()
            del x, result
        return half - started, clock() - half


class Calls:
    """Counts calls of Python functions while its context lasts, by the thread that makes them."""

    def __init__(self) -> None:
        self.counts = {"here": 0, "others": 0}
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
                plain, ours = (program.passes(each, saves, count, self._note) for each in (nullcontext, scope))
            for way in (0, 1):
                found[way].append(f"{max(ours[way] - plain[way], 0) / saves:.0f}")
        return [" + ".join(some) for some in found]


def scopes(framework: str, device: str) -> Mapping[str, Mapping[str, Scope]]:
    """Return the contexts that are measured, by size of the tensors and by name."""
    graph = import_module("torch.autograd.graph" if framework == "torch" else "paddle.autograd")

    def under(policy: str | ts.HookPolicy, **options: Any) -> Scope:
        session = ts.stash(policy, framework=framework, **options)
        return lambda: session

    small = {
        "a pair that does nothing": lambda: graph.saved_tensors_hooks(lambda x: x, lambda x: x),
        "disk_spill, which keeps small ones": under("disk_spill"),
        "keep": under("keep", min_bytes=0),
        "cpu_offload, in host memory already": under("cpu_offload", min_bytes=0),
    }
    large: dict[str, Scope] = {COPIES: lambda: graph.saved_tensors_hooks(*[lambda x: x.detach().clone()] * 2)}
    if device != "cpu":
        kind = device.partition(":")[0]
        large["save_on_cpu, page-locked"] = lambda: graph.save_on_cpu(pin_memory=True, device_type=kind)
        return {LARGE: large | {name: under(name, min_bytes=0) for name in ("cpu_offload", "recompute | cpu_offload")}}
    for name, policy in {
        "host memory": ts.StoreIn(Memory()),
        "quantize": "quantize",
        "disk_spill": "disk_spill",
    }.items():
        large[f"{name}, at once"] = under(policy, min_bytes=0, limits=ts.Limits(in_flight=0, ahead=0))
        large[name] = under(policy, min_bytes=0)
    return {SMALL: small, LARGE: large}


def costs(framework: str, device: str, nbytes: int, saves: int, rounds: int) -> Generator[list[Any] | None, None, None]:
    """Yield the rows of a framework."""
    if device != "cpu":
        accelerator_named(device)
    calls, measured = Calls(), scopes(framework, device)
    gc.freeze()  # imported modules, which each pass would look through
    yield None
    for saved, chosen in measured.items():
        program = Program(framework, nbytes // 4 if saved == LARGE else 64, device)
        passes = {
            name: partial(program.passes, scope, saves) for name, scope in ({"none": nullcontext} | chosen).items()
        }
        found = interleave(passes, rounds if saved == LARGE else 10 * rounds)  # a kept tensor takes a tenth of the time
        plain = [median(times) for times in zip(*found.pop("none"), strict=True)]
        copies = [median(times) for times in zip(*found.pop(COPIES), strict=True)] if saved == LARGE else plain
        given = [1e6 * (copy - base) / saves or None for copy, base in zip(copies, plain, strict=True)]
        for name, times in found.items():
            both = zip(zip(*times, strict=True), copies, strict=True)
            beyond = [1e6 * (median(some) - base) / saves for some, base in both]
            yield [framework, saved, name, *given, *beyond, *calls.of(program, chosen[name], saves)]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--framework", action="append", choices=FRAMEWORKS)
    parser.add_argument("--device", default="cpu", help="of any accelerator of PyTorch, or cpu")
    parser.add_argument("--kib", type=int, default=80, help="size of a tensor that is stashed, in KiB")
    parser.add_argument("--saves", type=int, default=200, help="saved tensors of a program")
    parser.add_argument("--rounds", type=int, default=30)


def main(options: argparse.Namespace, report: Report) -> None:
    report.legend = LEGEND
    report.begin(COLUMNS)
    sizes = {"nbytes": options.kib * 2**10, "saves": options.saves, "rounds": options.rounds}
    for framework in options.framework or FRAMEWORKS:
        alone("hooks:costs", f"hooks, {framework}", report.row, framework=framework, device=options.device, **sizes)
