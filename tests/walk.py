"""How far one saved tensor goes through the package, on PyTorch: the rooms that it enters, and the calls of Python.

Run as ``python -m tests.walk [--policy LINE ...] [--modules] [--device sim]``. A *room* is a folder of the package, as
``docs/ARCHITECTURE.md`` lists them; rooms and modules count with at least one call for every other saved tensor. On the
CPU the model has layers, whose weights are saved, too, and the difference between a long and a short one leaves out the
costs of a whole step; on a device all it saves is stashed, and all calls of the step count. *Out* is the forward pass,
and on the CPU lasts until nothing is under way; *back* is the backward pass. Calls are those of functions of the
package in the fifth training step: on all threads, and without the threads of the package.
"""

import argparse
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType

import torch

import tensorstash as ts
from benchmarks.harness.torch_accelerator import accelerator_named

PACKAGE = str(Path(ts.__file__).parent) + "/"
POLICIES = ("keep", "disk_spill", "recompute | disk_spill")
DEVICE_POLICIES = ("cpu_offload", "recompute | cpu_offload")
BUDGET = "4 MiB"
SHORT, LONG = 6, 12
MORE = 16  # times as many tensors, each of as much less, on a device, whose copies go in groups


OTHER_THREADS = "other threads"

Calls = dict[str, float]
"""By module; those of other threads among them once more under :data:`OTHER_THREADS`."""


class Trace:
    """Counts the calls of functions of the package by module, on all threads that start after it."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.thread = threading.get_ident()

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """Take an event of :func:`sys.setprofile`."""
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self.calls[frame.f_code.co_filename.removeprefix(PACKAGE)] += 1
            self.calls[OTHER_THREADS] += threading.get_ident() != self.thread

    def taken(self) -> Counter[str]:
        """Return the calls since the last time."""
        calls, self.calls = self.calls, Counter()
        return calls


def trips(
    policy: ts.HookPolicy, budget: str | None, blocks: int, device: str
) -> tuple[int, Counter[str], Counter[str]]:
    """Return the number of tensors that a step saves, and its calls by module on the way out and back.

    Args:
        policy: of the scope.
        budget: of the scope.
        blocks: of the model, each of which saves the same tensors of 1 MiB.
        device: where the model runs.
    """
    torch.manual_seed(0)
    more = 1 if device == "cpu" else MORE
    layers = (torch.nn.LayerNorm(256), torch.nn.Linear(256, 256), torch.nn.GELU())
    parts = [torch.nn.Sequential(*layers) if device == "cpu" else torch.nn.Tanh()] * blocks * more
    model, batch = torch.nn.Sequential(*parts).to(device), torch.randn(1024 // more, 256).to(device).requires_grad_()
    trace = Trace()
    threading.setprofile(trace.profile)
    sys.setprofile(trace.profile)
    try:
        scope = ts.stash(policy, budget=budget, framework="torch", min_bytes=None if device == "cpu" else 2**14)
        for _ in range(5):
            seen = scope.stats().seen.tensors
            trace.taken()
            with scope:
                loss = model(batch).square().sum()
            if device == "cpu":
                scope.drain()
            else:  # whose backward runs on a thread that Python has not started
                loss.register_hook(lambda _: sys.setprofile(trace.profile))
            out = trace.taken()
            loss.backward()
            back = trace.taken()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return scope.stats().seen.tensors - seen, out, back


def per_tensor(policy: ts.HookPolicy, budget: str | None, device: str) -> tuple[Calls, Calls]:
    """Return the calls by module for one saved tensor, on the way out and back."""
    few, *before = trips(policy, budget, SHORT, device) if device == "cpu" else (0, Counter(), Counter())
    many, *after = trips(policy, budget, LONG, device)
    out, back = (
        {path: (calls[path] - fewer[path]) / (many - few) for path in calls}
        for fewer, calls in zip(before, after, strict=True)
    )
    return out, back


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", action="append", help="one line, as in tensorstash.parse")
    parser.add_argument("--device", default="cpu", help="of any accelerator of PyTorch, or cpu")
    parser.add_argument("--modules", action="store_true", help="print each module with its calls, too")
    options = parser.parse_args()
    if options.device != "cpu":
        accelerator_named(options.device)
    defaults = POLICIES if options.device == "cpu" else DEVICE_POLICIES
    policies = {line: (ts.parse(line), None) for line in options.policy or defaults}
    if not options.policy and options.device == "cpu":
        policies[f"disk_spill, budget of {BUDGET}"] = ts.DiskSpill(), BUDGET
    torch.set_num_threads(1)
    print("| policy | rooms out | rooms back | modules out | modules back | calls out | calls back | on this thread |")
    print("|---|---|---|---|---|---|---|---|")
    for line, (policy, budget) in policies.items():
        trips_of_one = per_tensor(policy, budget, options.device)
        others = sum(trip.pop(OTHER_THREADS, 0) for trip in trips_of_one)
        calls = [sum(trip.values()) for trip in trips_of_one]
        modules = [{path: calls for path, calls in trip.items() if calls >= 0.5} for trip in trips_of_one]
        rooms = [{Path(path).parts[0] for path in trip} for trip in modules]
        cells = [*map(len, rooms), *map(len, modules), *(f"{each:.1f}" for each in (*calls, sum(calls) - others))]
        print(f"| `{line}` |", " | ".join(map(str, cells)), "|")
        if options.modules:
            for name, trip in zip(("out", "back"), modules, strict=True):
                print(f"    {name}:", ", ".join(f"{path} {calls:.1f}" for path, calls in sorted(trip.items())))


if __name__ == "__main__":
    main()
