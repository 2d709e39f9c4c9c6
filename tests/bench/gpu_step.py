"""Training steps of a Llama-like model on a device: memory, time and copies under our policies and under their rivals.

    python tests/bench/gpu_step.py                                   # on CUDA, within ten minutes
    python tests/bench/gpu_step.py --length 8192 --method none --method cpu_offload
    python tests/bench/gpu_step.py --device cpu --width 64 --depth 2 --heads 2 --length 64 --vocabulary 128

A method is a name of METHODS or a policy as one line. All run in one process, on one model, and take turns, so that a
clock that drifts is fair to all. Memory is the peak that the device's allocator has handed out, less what it held
before the step. Copies are read from a profile of a step of its own, and compared with bare copies between page-locked
memory and the device. Gradients are compared on a step with deterministic algorithms. The script needs PyTorch and this
checkout alone, and prints a Markdown table; ``--json FILE`` and ``--markdown FILE`` keep the figures.
"""

import argparse
import gc
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody gives it
from torch.utils.checkpoint import checkpoint

import tensorstash as ts

METHODS = (
    "none",
    "checkpoint",
    "save_on_cpu",
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


class Attention(nn.Module):
    """Causal attention with rotary positions."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        query, key, value = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(_turned(query, turns), _turned(key, turns), value, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a gated feed-forward network, each behind a norm and beside the residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        hidden = 8 * width // 3 // 64 * 64 or width
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.attention = Attention(width, heads)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.norms[0](x), turns)
        normed = self.norms[1](x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Llama(nn.Module):
    """Token embeddings, blocks and a head; ``recompute`` drops the activations inside of blocks."""

    def __init__(self, vocabulary: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.recompute = False
        self.head_width = width // heads
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        rates = 1e4 ** -(torch.arange(0, self.head_width, 2, device=x.device) / self.head_width)
        angles = torch.arange(tokens.shape[1], device=x.device)[:, None] * rates
        turns = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in self.blocks:
            x = checkpoint(block, x, turns, use_reentrant=False) if self.recompute else block(x, turns)
        return self.head(self.norm(x))


def _turned(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = turns
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cosine - right * sine, left * sine + right * cosine], dim=-1)


class Method:
    """One way to train: a context for each forward, and what it knows of itself.

    Args:
        name: as on the command line.
        model: what it trains.
        directory: for files.
    """

    def __init__(self, name: str, model: Llama, directory: str) -> None:
        head, _, rest = name.partition(", ")
        self.recompute = head == "checkpoint"
        name = rest if self.recompute else name
        _, some, line = name.rpartition("some: ")
        self.session: Any = None
        self.scope: Callable[[], AbstractContextManager[Any]] = nullcontext
        if name == "save_on_cpu":
            is_cuda = model.head.weight.is_cuda
            self.scope = lambda: torch.autograd.graph.save_on_cpu(pin_memory=is_cuda)
        elif name == "trl":
            from trl.models.activation_offloading import OffloadActivations

            offload = OffloadActivations()
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

    def __init__(self, options: argparse.Namespace, length: int) -> None:
        self.device = torch.device(options.device)
        self.is_cuda = self.device.type == "cuda"
        torch.manual_seed(0)
        with self.device:
            self.model = Llama(options.vocabulary, options.width, options.heads, options.depth).to(torch.bfloat16)
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
        self.synchronize()
        before = 0
        if self.is_cuda:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        started = perf_counter()
        self.step(method)
        self.synchronize()
        seconds = perf_counter() - started
        return seconds, torch.cuda.max_memory_allocated() - before if self.is_cuda else 0

    def gradients(self, method: Method) -> list[Tensor]:
        self.model.zero_grad(set_to_none=False)
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            self.step(method)
        finally:
            torch.use_deterministic_algorithms(False)
        return [parameter.grad.clone() for parameter in self.model.parameters()]

    def copies(self, method: Method) -> dict[str, dict[str, float]]:
        """Return the bytes and the seconds of the copies of a step, in each direction, as the profiler saw them."""
        if not self.is_cuda:
            return {}
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            self.step(method)
            self.synchronize()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "trace.json")
            profile.export_chrome_trace(str(path))
            events = json.loads(path.read_text())["traceEvents"]
        totals = {way: {"nbytes": 0.0, "seconds": 0.0} for way in ("DtoH", "HtoD")}
        for event in events:
            way = next((way for way in totals if way in event.get("name", "")), None)
            if event.get("cat") == "gpu_memcpy" and way:
                totals[way]["nbytes"] += event["args"]["bytes"]
                totals[way]["seconds"] += event["dur"] / 1e6
        return totals

    def synchronize(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize()


def bare_bandwidth(device: torch.device, nbytes: int) -> dict[str, float]:
    """Return bytes per second of the best of five copies between page-locked memory and the device."""
    host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    there = torch.empty(nbytes, dtype=torch.uint8, device=device)
    best = {}
    for way, (source, target) in {"DtoH": (there, host), "HtoD": (host, there)}.items():
        times = []
        for _ in range(6):
            started = perf_counter()
            target.copy_(source, non_blocking=True)
            if device.type == "cuda":
                torch.cuda.synchronize()
            times.append(perf_counter() - started)
        best[way] = nbytes / min(times[1:])
    return best


def compare(gradients: list[Tensor], expected: list[Tensor]) -> dict[str, Any]:
    """Return whether all bits are equal, and the largest distance of a parameter's gradient, of its norm."""
    distances = [
        float((a.float() - b.float()).norm() / b.float().norm().clamp_min(1e-30))
        for a, b in zip(gradients, expected, strict=True)
    ]
    equal = all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))
    return {"equal": equal, "distance": max(distances)}


@contextmanager
def out_of_memory(row: dict[str, Any]) -> Iterator[None]:
    """Note in the row that the device's memory did not suffice, instead of ending the run."""
    try:
        yield
    except torch.OutOfMemoryError:
        row["failure"] = "out of memory"


def measure(options: argparse.Namespace, length: int, deadline: float, directory: str) -> list[dict[str, Any]]:
    """Return one row per method."""
    bench = Bench(options, length)
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
            method = Method(name, bench.model, directory)
        except ImportError as error:
            row["failure"] = f"not importable: {error.name}"
            continue
        with out_of_memory(row):
            reset_pinned(bench.is_cuda)
            gradients = bench.gradients(method)
            row["gradients"] = compare(gradients, expected) if expected else {"equal": True, "distance": 0.0}
            if expected is None:
                expected = gradients
                # The same again: what differs then is the device's doing.
                row["gradients"] = compare(bench.gradients(method), expected)
            del gradients
            bench.timed(method)
            row["copies"] = bench.copies(method)
            row["stats"] = method.stats()
            row["pinned_nbytes"] = pinned_nbytes(bench.is_cuda, row["stats"])
            methods.append((method, row))
        clear(bench.is_cuda)
    del expected
    for _ in range(options.rounds):
        for method, row in methods:
            if perf_counter() > deadline or row.get("failure"):
                continue
            again = Method(row["method"], bench.model, directory) if method.session is None else method
            steps(bench, again, row, options.steps)
    return rows


def steps(bench: Bench, method: Method, row: dict[str, Any], count: int) -> None:
    """Add the seconds and the peaks of some steps to a row; the first warms up."""
    with out_of_memory(row):
        for number in range(count + 1):
            seconds, peak = bench.timed(method)
            if number:
                row["seconds"].append(seconds)
                row["peaks"].append(peak)
    clear(bench.is_cuda)


def reset_pinned(is_cuda: bool) -> None:
    if is_cuda:
        torch.cuda.reset_peak_host_memory_stats()


def pinned_nbytes(is_cuda: bool, stats: dict[str, Any]) -> int:
    """Return the page-locked bytes: those that the session holds, else those that were in use of PyTorch's own pool."""
    if stats:
        return int(stats["pinned_bytes"])
    return int(torch.cuda.host_memory_stats()["active_bytes.peak"]) if is_cuda else 0


def clear(is_cuda: bool) -> None:
    gc.collect()
    if is_cuda:
        torch.cuda.empty_cache()


def table(rows: list[dict[str, Any]], bare: dict[str, float]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| length | method | peak GiB | of none | step ms | of none | GiB out | GB/s out, of bare | GB/s back, of bare "
        "| page-locked GiB, of payload | gradients |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    plain = {row["length"]: row for row in rows if row["method"] == "none" and row["seconds"]}
    for row in rows:
        cells = [str(row["length"]), row["method"].replace("|", "\\|")]
        if not row["seconds"]:
            lines.append("| " + " | ".join([*cells, row.get("failure", "not timed"), *[""] * 8]) + " |")
            continue
        base = plain.get(row["length"], row)
        peak, seconds = max(row["peaks"]), median(row["seconds"])
        cells += [f"{peak / 2**30:.2f}", ratio(peak, max(base["peaks"]))] if peak else ["", ""]
        cells += [f"{1e3 * seconds:.1f}", ratio(seconds, median(base["seconds"]))]
        copies = row["copies"]
        cells.append(f"{copies['DtoH']['nbytes'] / 2**30:.2f}" if copies else "")
        for way in ("DtoH", "HtoD"):
            speed = copies[way]["nbytes"] / copies[way]["seconds"] if copies and copies[way]["seconds"] else 0
            cells.append(f"{speed / 1e9:.1f}, {ratio(speed, bare[way])}" if speed else "")
        payload = row["stats"].get("peak_bytes") or (copies["DtoH"]["nbytes"] if copies else 0)
        pinned = row["pinned_nbytes"]
        cells.append(f"{pinned / 2**30:.2f}, {ratio(pinned, payload)}" if pinned else "")
        grads = row["gradients"]
        cells.append("equal" if grads["equal"] else f"differ by {grads['distance']:.1e}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def ratio(value: float, base: float) -> str:
    return f"{value / base:.3f}" if base else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--length", action="append", type=int)
    parser.add_argument("--method", action="append")
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--budget", type=float, default=540, help="seconds after which nothing new is measured")
    parser.add_argument("--directory", default=tempfile.gettempdir())
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no CUDA device; --device cpu runs the script, with sizes to match")

    deadline = perf_counter() + options.budget
    bare = bare_bandwidth(device, (256 if device.type == "cuda" else 1) << 20)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    lines = [f"{name}, PyTorch {torch.__version__}, Python {platform.python_version()}"]
    lines.append("bare copies: " + ", ".join(f"{way} {speed / 1e9:.1f} GB/s" for way, speed in bare.items()))
    print("\n".join(lines), flush=True)
    rows: list[dict[str, Any]] = []
    for length in options.length or (4096, 8192, 16_384):
        measured = measure(options, length, deadline, options.directory)
        rows += measured
        clear(device.type == "cuda")
        print("", table(measured, bare), sep="\n", flush=True)
        if options.json:  # what is measured so far survives a time limit
            options.json.write_text(
                json.dumps({"device": name, "torch": torch.__version__, "bare": bare, "rows": rows})
            )
        if options.markdown:
            options.markdown.write_text("\n\n".join(["\n".join(lines), table(rows, bare)]) + "\n")


if __name__ == "__main__":
    main()
