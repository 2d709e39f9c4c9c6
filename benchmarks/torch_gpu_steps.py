"""Training steps of a GPT on a device: memory, time and copies under our policies and under their rivals.

    python -m benchmarks torch_gpu_steps                              # on CUDA, within ten minutes
    python -m benchmarks torch_gpu_steps --length 8192 --method none --method cpu_offload
    python -m benchmarks torch_gpu_steps --device xpu                 # or any other accelerator of PyTorch
    python -m benchmarks torch_gpu_steps --device sim --gigabytes 1 --width 64 --depth 2 --heads 2 --length 64
    python -m benchmarks torch_gpu_steps --device cpu --width 64 --depth 2 --heads 2 --length 64 --vocabulary 128

A method is a name of METHODS or a policy as one line. All run in one process, on one model, and take turns, so that a
clock that drifts is fair to all. Memory is the peak that the device's allocator has handed out, less what it held
before the step. Copies are read from a profile of a step of its own, or from the log of the simulated device, and
compared with bare copies between page-locked memory and the device; hidden is which share of their time, there and
back, the device was computing, too. Gradients are compared on a step with deterministic algorithms. Needs no framework
but PyTorch.
"""

import argparse
import gc
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody gives it

import tensorstash as ts
from benchmarks.harness.report import Report, machine
from benchmarks.harness.runner import interleave, seconds
from benchmarks.harness.torch_accelerator import WAYS, Accelerator, accelerator_named
from benchmarks.models import Model
from benchmarks.models.torch_gpt import GPT

METHODS = (
    "none",
    "checkpoint",
    "save_on_cpu",
    "save_on_cpu pinned",
    "trl",
    "cpu_offload",
    "quantize:bits=8",
    "quantize:bits=4 | cpu_offload",
    "cpu_offload | disk_spill:directory={directory}",
    "some: cpu_offload",
    "checkpoint, save_on_cpu",
    "checkpoint, trl",
    "checkpoint, cpu_offload",
)
"""A policy after ``some:`` holds for every fourth block, so that copies fit behind the computation of the others."""

SETTINGS: Any = {"framework": "torch", "network": "gpt", "rate": 0.0}

HEADS = ("length", "method", "peak GiB", "of none", "step ms", "of none", "GiB out", "GB/s out, of bare")
HEADS += ("GB/s back, of bare", "copies hidden", "page-locked GiB, of payload", "gradients")


class Method:
    """One way to train: a context for each forward, and what it knows of itself.

    Args:
        name: as on the command line.
        model: what it trains.
        directory: for files.
        kind: of the device.
    """

    def __init__(self, name: str, model: GPT, directory: str, kind: str) -> None:
        head, _, rest = name.partition(", ")
        self.recompute = head == "checkpoint"
        name = rest if self.recompute else name
        _, some, line = name.rpartition("some: ")
        self.session: Any = None
        self.scope: Callable[[], AbstractContextManager[Any]] = nullcontext
        if name.startswith("save_on_cpu"):
            is_pinned = name.endswith(" pinned") and kind != "cpu"
            there = "cuda" if kind == "cpu" else kind
            self.scope = lambda: torch.autograd.graph.save_on_cpu(pin_memory=is_pinned, device_type=there)
        elif name == "trl":
            from trl.models.activation_offloading import OffloadActivations

            try:
                offload = OffloadActivations()
            except AttributeError as lack:
                raise NotImplementedError(f"does not take the device: {lack}") from lack
            self.scope = lambda: offload
        elif name not in ("none", ""):
            session = self.session = ts.stash(ts.parse(line.format(directory=directory)), framework="torch")
            self.scope = partial(inside, model.blocks[::4], session) if some else lambda: session

    def stats(self) -> dict[str, Any]:
        return {} if self.session is None else self.session.stats().to_dict()


@contextmanager
def inside(blocks: Iterable[nn.Module], session: Any) -> Iterator[None]:
    """Enter the session for the forward of these blocks alone."""
    forwards = [(block, session(block.forward)) for block in blocks]
    for block, forward in forwards:
        block.forward = forward
    try:
        yield
    finally:
        for block, _ in forwards:
            del block.forward


class Bench:
    """A model on a device, and the measurements of one length of sequences."""

    def __init__(self, options: argparse.Namespace, length: int, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        torch.manual_seed(0)
        sizes = {name: getattr(options, name) for name in ("batch", "depth", "width", "heads", "vocabulary")}
        with accelerator.device:
            self.model = GPT(Model(**SETTINGS, context=length, **sizes)).to(torch.bfloat16)
            self.tokens = torch.randint(options.vocabulary, (options.batch, length + 1))

    def step(self, method: Method) -> None:
        self.model.recompute = method.recompute
        with method.scope():
            logits = self.model(self.tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), self.tokens[:, 1:].flatten())
            del logits
        loss.backward()

    def timed(self, method: Method) -> tuple[float, int]:
        """Return the seconds of a step and the bytes that the device's allocator handed out on top."""
        self.model.zero_grad(set_to_none=False)
        self.accelerator.synchronize()
        before = self.accelerator.reset_peak()
        spent = seconds(lambda: (self.step(method), self.accelerator.synchronize()))
        return spent, self.accelerator.peak() - before

    def gradients(self, method: Method) -> list[Tensor]:
        self.model.zero_grad(set_to_none=False)
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            self.step(method)
        finally:
            torch.use_deterministic_algorithms(False)
        return [parameter.grad.clone() for parameter in self.model.parameters()]

    def pinned_nbytes(self, stats: dict[str, Any]) -> int:
        """Return page-locked bytes: those that the session holds, else those that were in use of PyTorch's own pool."""
        if stats:
            return int(stats["pinned_bytes"])
        return self.accelerator.pinned_peak()

    def clear(self) -> None:
        gc.collect()
        self.accelerator.clear()


def bare_bandwidth(accelerator: Accelerator, nbytes: int) -> dict[str, float]:
    """Return bytes per second of the best of five copies between page-locked memory and the device."""
    host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=accelerator.has_pinned_memory)
    there = torch.empty(nbytes, dtype=torch.uint8, device=accelerator.device)

    def copy(target: Tensor, source: Tensor) -> float:
        return seconds(lambda: (target.copy_(source, non_blocking=True), accelerator.synchronize()))

    times = interleave({"DtoH": partial(copy, host, there), "HtoD": partial(copy, there, host)}, 6)
    return {way: nbytes / min(some[1:]) for way, some in times.items()}


def compare(gradients: list[Tensor], expected: list[Tensor]) -> dict[str, Any]:
    """Return whether all bits are equal, and the largest distance of a parameter's gradient, of its norm."""
    pairs = list(zip(gradients, expected, strict=True))
    distances = [float((a.float() - b.float()).norm() / b.float().norm().clamp_min(1e-30)) for a, b in pairs]
    return {"equal": all(torch.equal(a, b) for a, b in pairs), "distance": max(distances)}


@contextmanager
def out_of_memory(row: dict[str, Any]) -> Iterator[None]:
    """Note in the row that the device's memory did not suffice, instead of ending the run."""
    try:
        yield
    except torch.OutOfMemoryError:
        row["failure"] = "out of memory"


def measure(
    options: argparse.Namespace, length: int, accelerator: Accelerator, deadline: float
) -> list[dict[str, Any]]:
    """Return one row per method."""
    bench, kind = Bench(options, length, accelerator), accelerator.device.type
    rows: list[dict[str, Any]] = []
    methods: list[tuple[Method, dict[str, Any]]] = []
    expected: list[Tensor] | None = None
    for name in dict.fromkeys(["none", *(options.method or METHODS)]):
        row: dict[str, Any] = {"length": length, "method": name, "seconds": [], "peaks": []}
        rows.append(row)
        if perf_counter() > deadline:
            row["failure"] = "no time left"
            continue
        try:
            method = Method(name, bench.model, options.directory, kind)
        except ImportError as error:
            row["failure"] = f"not importable: {error.name}"
            continue
        except NotImplementedError as error:
            row["failure"] = str(error)
            continue
        with out_of_memory(row):
            accelerator.reset_pinned()
            gradients = bench.gradients(method)
            if expected is None:
                # The same again: what differs then is the device's doing.
                expected, gradients = gradients, bench.gradients(method)
            row["gradients"] = compare(gradients, expected)
            del gradients
            bench.timed(method)
            row["copies"] = accelerator.copies(partial(bench.step, method))
            row["stats"] = method.stats()
            row["pinned_nbytes"] = bench.pinned_nbytes(row["stats"])
            methods.append((method, row))
        bench.clear()
    del expected
    for _ in range(options.rounds):
        for method, row in methods:
            if perf_counter() > deadline or row.get("failure"):
                continue
            again = Method(row["method"], bench.model, options.directory, kind) if method.session is None else method
            with out_of_memory(row):
                found = [bench.timed(again) for _ in range(options.steps + 1)][1:]  # the first warms up
                row["seconds"] += [spent for spent, _ in found]
                row["peaks"] += [peak for _, peak in found]
            bench.clear()
    return rows


def cells(row: dict[str, Any], base: dict[str, Any], bare: dict[str, float]) -> Iterator[str]:
    """Yield the cells of a row.

    Args:
        row: what was measured of a method.
        base: the same of none.
        bare: bandwidths of bare copies.
    """
    yield str(row["length"])
    yield row["method"]
    if not row["seconds"]:
        yield from [row.get("failure", "not timed"), *[""] * 9]
        return
    peak, spent, copies = max(row["peaks"]), median(row["seconds"]), row["copies"]
    yield from (f"{peak / 2**30:.2f}", ratio(peak, max(base["peaks"]))) if peak else ("", "")
    yield from (f"{1e3 * spent:.1f}", ratio(spent, median(base["seconds"])))
    yield f"{copies['DtoH']['nbytes'] / 2**30:.2f}" if copies else ""
    for way in ("DtoH", "HtoD"):
        speed = copies[way]["nbytes"] / copies[way]["seconds"] if copies and copies[way]["seconds"] else 0
        yield f"{speed / 1e9:.1f}, {ratio(speed, bare[way])}" if speed else ""
    yield ", ".join(hidden(copies[way]) for way in WAYS) if copies else ""
    payload = row["stats"].get("peak_bytes") or (copies["DtoH"]["nbytes"] if copies else 0)
    pinned = row["pinned_nbytes"]
    yield f"{pinned / 2**30:.2f}, {ratio(pinned, payload)}" if pinned else ""
    yield "equal" if row["gradients"]["equal"] else f"differ by {row['gradients']['distance']:.1e}"


def hidden(copies: dict[str, float]) -> str:
    """Return which share of the time that copies took the device was computing, too."""
    return ratio(copies["beside"], copies["seconds"])


def ratio(value: float, base: float) -> str:
    return f"{value / base:.3f}" if base else ""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cuda", help="of any accelerator of PyTorch; cpu; sim")
    parser.add_argument("--gigabytes", type=float, default=0.0, help="a second over each link of the simulated device")
    parser.add_argument("--length", action="append", type=int)
    parser.add_argument("--method", action="append")
    parser.add_argument("--budget", type=float, default=540, help="seconds after which nothing new is measured")
    parser.add_argument("--directory", default=tempfile.gettempdir())
    sizes = {"width": 4096, "heads": 32, "depth": 8, "vocabulary": 32_000, "batch": 1, "rounds": 3, "steps": 3}
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size)


def main(options: argparse.Namespace, report: Report) -> int:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # of deterministic algorithms
    accelerator = accelerator_named(options.device, bandwidth=options.gigabytes * 1e9)
    name = accelerator.name
    deadline = perf_counter() + options.budget
    is_real = accelerator.module is not None and accelerator.log is None
    bare = bare_bandwidth(accelerator, (256 if is_real else 1) << 20)
    copies = ", ".join(f"{way} {speed / 1e9:.1f} GB/s" for way, speed in bare.items())
    report.conditions = f"{name}, {machine(['torch'])}; bare copies: {copies}"
    report.begin(*HEADS, left=("method", "gradients"))
    report.measured |= {"device": name, "bare": bare, "rows": []}
    for length in options.length or (4096, 8192, 16_384):
        rows = measure(options, length, accelerator, deadline)
        report.measured["rows"] += rows
        for row in rows:
            report.row(*cells(row, rows[0], bare))
        gc.collect()
    return 0
