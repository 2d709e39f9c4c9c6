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
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from statistics import median
from time import perf_counter
from typing import Any

import tensorstash as ts
from benchmarks.harness.report import Report, columns
from benchmarks.harness.runner import alone, interleave
from tensorstash.stores import Memory
from tensorstash.testing.labs import lab_of
from tensorstash.testing.layouts import floats

FRAMEWORKS = ("torch", "paddle")
COLUMNS = columns("framework | saved | under | copy, pack:.1f | copy, unpack:.1f | pack:.2f | unpack:.2f")
LEGEND = "Microseconds per saved tensor beyond hooks that copy it, whose own are given."

Scope = Callable[[], AbstractContextManager[Any]]

SMALL, LARGE, COPIES = "small tensors", "large tensors", "copies"


def passes(start: Any, saves: int, scope: Scope) -> tuple[float, float]:
    """Return the seconds of a forward under a scope, of operations that save their inputs, and of its backward."""
    for _ in range(2):  # the second counts: the first takes back memory and caches
        gc.collect()
        started, x = perf_counter(), start
        with scope():
            for _ in range(saves):
                x = x.sin()
        half, result = perf_counter(), x.sum()
        result.backward()
        del x, result
    return half - started, perf_counter() - half


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
    policies: dict[str, Any] = {"host memory": ts.StoreIn(Memory()), "quantize": "quantize", "disk_spill": "disk_spill"}
    for name, policy in policies.items():
        large[f"{name}, at once"] = under(policy, min_bytes=0, limits=ts.Limits(in_flight=0, ahead=0))
        large[name] = under(policy, min_bytes=0)
    return {SMALL: small, LARGE: large}


def costs(framework: str, device: str, nbytes: int, saves: int, rounds: int) -> Generator[list[Any] | None, None, None]:
    """Yield the rows of a framework."""
    if device != "cpu":
        import_module("benchmarks.harness.torch_accelerator").accelerator_named(device)
    measured = scopes(framework, device)
    gc.freeze()  # imported modules, which each pass would look through
    yield None
    for saved, chosen in measured.items():
        elements = floats(nbytes // 4 if saved == LARGE else 64)
        start = lab_of(framework).on(device).tensor(elements, requires_grad=True)
        calls = {name: partial(passes, start, saves, scope) for name, scope in ({"none": nullcontext} | chosen).items()}
        found = interleave(calls, rounds if saved == LARGE else 10 * rounds)  # a kept tensor takes a tenth of the time
        plain = [median(times) for times in zip(*found.pop("none"), strict=True)]
        copies = [median(times) for times in zip(*found.pop(COPIES), strict=True)] if saved == LARGE else plain
        given = [1e6 * (copy - base) / saves or None for copy, base in zip(copies, plain, strict=True)]
        for name, times in found.items():
            both = zip(zip(*times, strict=True), copies, strict=True)
            beyond = [1e6 * (median(some) - base) / saves for some, base in both]
            yield [framework, saved, name, *given, *beyond]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--framework", action="append", choices=FRAMEWORKS)
    parser.add_argument("--device", default="cpu", help="of any accelerator of PyTorch, or cpu")
    parser.add_argument("--kib", type=int, default=80, help="size of a tensor that is stashed, in KiB")
    parser.add_argument("--saves", type=int, default=200, help="saved tensors of a program")
    parser.add_argument("--rounds", type=int, default=30)


def main(options: argparse.Namespace, report: Report) -> None:
    report.begin(COLUMNS, LEGEND)
    sizes = {"nbytes": options.kib * 2**10, "saves": options.saves, "rounds": options.rounds}
    for framework in options.framework or FRAMEWORKS:
        alone("hooks:costs", f"hooks, {framework}", report.row, framework=framework, device=options.device, **sizes)
