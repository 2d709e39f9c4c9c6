"""Training steps on a device: memory, time and copies under our policies and under their rivals.

    python -m benchmarks torch_device                              # a GPT on CUDA, within ten minutes
    python -m benchmarks torch_device --device xpu                 # or any other accelerator of PyTorch
    python -m benchmarks torch_device --vary                       # sequences of random lengths
    python -m benchmarks torch_device --llama --width 2048 --depth 16 --vocabulary 128256
    python -m benchmarks torch_device --device cpu --width 64 --depth 2 --heads 2 --length 64

A method is a name of METHODS or a policy as one line. All run in one process, on one model, and take turns. Memory is
the peak that the device's allocator has handed out, less what it held before the step. The ratio of a step is the
median of those between steps of one turn, ± its standard error.

With ``--profile``, copies are read from a profile of a step of its own, and compared with bare copies between
page-locked memory and the device. Hidden is the share of their time in which the device computed, too. Few blocks
hide less than many: nothing computes beside the first copy out and the last one back.
"""

import argparse
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from statistics import median, stdev
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody gives it
from transformers import LlamaConfig, LlamaForCausalLM

import tensorstash as ts
from benchmarks.harness.report import Report, columns
from benchmarks.harness.torch_accelerator import WAYS, Accelerator, Copies, accelerator_named, bare_seconds
from benchmarks.models import Model
from benchmarks.models import torch as pytorch
from benchmarks.models.networks import GPT, new

NONE = "none"
METHODS = (
    *(NONE, "checkpoint", "save_on_cpu pinned", "trl", "cpu_offload", "recompute | cpu_offload"),
    *("checkpoint, save_on_cpu pinned", "checkpoint, trl", "checkpoint, cpu_offload", "checkpoint | cpu_offload"),
    *("auto@4GiB", "checkpoint | cpu_offload@4GiB", "quantize:bits=4 | cpu_offload", "quantize:bits=8"),
    *("save_on_cpu", "cpu_offload | disk_spill:directory={directory}"),
)

WRAPPED = ("checkpoint |", "auto")
"""Policies with blocks, which wrap the model."""

COLUMNS = columns("""
    length:> | method | peak GiB:.2f | of none:.3f | step ms:.1f | of none's:> | GiB out:.3f |
    out ms, of bare:> | hidden out:.3f | back ms, of bare:> | hidden back:.3f | hidden ms:.0f |
    page-locked GiB, of payload:> | gradients | failure
""")


class Method:
    """One way to train, by its name: a context for each forward, and what it knows of itself."""

    def __init__(self, name: str, directory: str, kind: str) -> None:
        head, _, rest = name.partition(", ")
        self.recompute = head == "checkpoint"
        name, _, budget = (rest if self.recompute else name).partition("@")
        self.wrapping = partial(ts.wrap, policy=name, budget=budget or None) if name.startswith(WRAPPED) else None
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
        elif self.wrapping is None and name not in (NONE, ""):
            policy = name.format(directory=directory)
            session = self.session = ts.stash(policy, budget=budget or None, framework="torch")
            self.scope = lambda: session

    @contextmanager
    def around(self, model: Any) -> Iterator[None]:
        """Wrap a model meanwhile, if this is a way to wrap one."""
        if self.wrapping is None:
            yield
            return
        with self.wrapping(model) as self.session:
            yield


def gpt(options: argparse.Namespace, length: int) -> nn.Module:
    sizes = {name: getattr(options, name) for name in ("batch", "depth", "width", "heads", "vocabulary")}
    model: nn.Module = new(pytorch, GPT, Model(framework="torch", network="gpt", rate=0.0, context=length, **sizes))
    return model


def llama(options: argparse.Namespace, length: int) -> nn.Module:
    """Return a model of Transformers with a fourth of its queries for keys, and linear layers of four widths."""
    config = LlamaConfig(
        hidden_size=options.width,
        intermediate_size=4 * options.width,
        num_hidden_layers=options.depth,
        num_attention_heads=options.heads,
        num_key_value_heads=max(options.heads // 4, 1),
        vocab_size=options.vocabulary,
        max_position_embeddings=length,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


class Bench:
    """A model on a device, and the measurements of one length of sequences."""

    def __init__(self, options: argparse.Namespace, length: int, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        torch.manual_seed(0)
        with accelerator.device:
            self.model: Any = (llama if options.llama else gpt)(options, length).to(torch.bfloat16)
            self.whole = self.batch = torch.randint(options.vocabulary, (options.batch, length + 1))

    def shorten(self, seed: str) -> None:
        """Let steps take sequences of a random length from now on, from half to all."""
        length = self.whole.shape[1] - 1
        self.batch = self.whole[:, : random.Random(seed).randint(length // 2, length) + 1]

    def step(self, method: Method) -> None:
        if isinstance(self.model, LlamaForCausalLM):
            self.model.gradient_checkpointing_disable()
            if method.recompute:
                self.model.gradient_checkpointing_enable({"use_reentrant": False})
        self.model.recompute = method.recompute
        with method.scope():
            logits = self.model(self.batch[:, :-1])
            logits = getattr(logits, "logits", logits)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), self.batch[:, 1:].flatten())
        loss.backward()

    def timed(self, method: Method) -> tuple[float, int]:
        """Return the seconds of a step and the bytes that the device's allocator handed out on top."""
        self.model.zero_grad(set_to_none=False)
        return self.accelerator.timed(partial(self.step, method))

    def gradients(self, method: Method) -> list[Tensor]:
        self.model.zero_grad(set_to_none=False)
        for is_lenient in (False, True):
            torch.use_deterministic_algorithms(True, warn_only=is_lenient)  # attention is only where it is no warning
            try:
                self.step(method)
                break
            except RuntimeError as refusal:
                if is_lenient or "deterministic" not in str(refusal):
                    raise
            finally:
                torch.use_deterministic_algorithms(False)
        return [parameter.grad.clone() for parameter in self.model.parameters()]


def compare(gradients: list[Tensor], expected: list[Tensor]) -> str:
    """Say whether all bits are equal, or the largest distance of a parameter's gradient, of its norm."""
    pairs = list(zip(gradients, expected, strict=True))
    if all(torch.equal(a, b) for a, b in pairs):
        return "equal"
    return f"differ by {max(float((a.float() - b).norm() / b.float().norm()) for a, b in pairs):.1e}"


@contextmanager
def failures(row: dict[str, Any]) -> Iterator[None]:
    """Note in the row why a method does not run here, instead of ending the run."""
    try:
        yield
    except (torch.OutOfMemoryError, ImportError, NotImplementedError) as error:
        row["failure"] = str(error).partition("\n")[0]


def measure(options: argparse.Namespace, bench: Bench, deadline: float) -> dict[str, dict[str, Any]]:
    """Return what was measured, by method and name, ``seconds`` and ``peaks`` by turn and step; or its ``failure``."""
    accelerator = bench.accelerator
    make = partial(Method, directory=options.directory, kind=accelerator.device.type)
    rows: dict[str, dict[str, Any]] = {}
    methods: dict[str, Method] = {}
    expected: list[Tensor] | None = None
    begun = perf_counter()
    for name in dict.fromkeys([NONE, *(options.method or METHODS)]):
        row = rows[name] = {"seconds": {}, "peaks": {}}
        if perf_counter() > begun + (deadline - begun) / 2:  # the other half is for turns
            row["failure"] = "no time left"
            continue
        with failures(row):
            method = methods[name] = make(name)
            accelerator.pinned_peak()
            with method.around(bench.model):
                gradients = bench.gradients(method)
                if expected is None:
                    # The same again: what differs then is the device's doing.
                    expected, gradients = gradients, bench.gradients(method)
                row["gradients"] = compare(gradients, expected)
                del gradients
                bench.timed(method)
                row["copies"] = accelerator.copies(partial(bench.step, method)) if options.profile else {}
                row["stats"] = {} if method.session is None else method.session.stats().to_dict()
            row["pinned_nbytes"] = row["stats"].get("pinned_bytes", accelerator.pinned_peak())
        accelerator.clear()
    del expected
    for turn in range(options.rounds):
        for name in list(methods)[:: 1 if turn % 2 else -1]:
            row = rows[name]
            if perf_counter() > deadline or "failure" in row:
                continue
            method = make(name) if methods[name].session is None else methods[name]
            with failures(row), method.around(bench.model):
                for _ in range(1 if method.wrapping is None else 4):  # borders settle after three steps
                    bench.timed(method)  # warms up
                for step in range(options.steps):
                    if options.vary:
                        bench.shorten(f"{turn} {step}")
                    row["seconds"][turn, step], row["peaks"][turn, step] = bench.timed(method)
            accelerator.clear()
    return rows


def cells(name: str, rows: Mapping[str, Mapping[str, Any]], bare: Mapping[str, float]) -> dict[str, Any]:
    """Return what is known of a method, by head; ``bare`` are seconds per byte of bare copies."""
    row, none = rows[name], rows[NONE]
    if not row["seconds"]:
        return {"method": name, "failure": row.get("failure", "not timed")}
    times = none["seconds"]
    ratios = [spent / times[when] for when, spent in row["seconds"].items() if when in times]
    if not ratios:
        return {"method": name, "failure": "no time left"}
    error = 1.2533 * stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0  # of a median of normal values
    found = {
        "method": name,
        "step ms": 1e3 * median(row["seconds"].values()),
        "of none's": f"{median(ratios):.3f}" + (f" ± {error:.3f}" if error else ""),
        "gradients": row["gradients"],
    }
    peak, most = (max(each["peaks"].values()) for each in (row, none))
    found |= {"peak GiB": peak / 2**30, "of none": peak / most} if peak else {}
    copies: Copies = {way: row["copies"][way] for way in WAYS if row["copies"] and row["copies"][way]["seconds"]}
    for way, copy in copies.items():
        of_bare = copy["seconds"] / (bare[way] * copy["nbytes"])
        found[f"{WAYS[way]} ms, of bare"] = f"{1e3 * copy['seconds']:.0f}, {of_bare:.3f}"
        found[f"hidden {WAYS[way]}"] = copy["beside"] / copy["seconds"]
    nbytes = row["copies"]["DtoH"]["nbytes"] if row["copies"] else None
    found["GiB out"] = None if nbytes is None else nbytes / 2**30
    payload, pinned = row["stats"].get("peak_bytes") or nbytes, row["pinned_nbytes"]
    if pinned and payload:
        found["page-locked GiB, of payload"] = f"{pinned / 2**30:.3f}, {pinned / payload:.3f}"
    if copies:
        found["hidden ms"] = 1e3 * sum(copy["beside"] for copy in copies.values())
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cuda", help="of any accelerator of PyTorch, or cpu")
    parser.add_argument("--length", action="append", type=int, help="of the GPT's sequences")
    parser.add_argument("--method", action="append")
    parser.add_argument("--llama", action="store_true", help="a Llama of Transformers instead of a GPT")
    parser.add_argument("--profile", action="store_true", help="tell the hidden part of the copies")
    parser.add_argument("--vary", action="store_true", help="train on sequences of random lengths up to this")
    parser.add_argument("--budget", type=float, default=540, help="seconds after which nothing new is measured")
    parser.add_argument("--directory", default=tempfile.gettempdir())
    sizes = {"width": 4096, "depth": 8, "batch": 1, "heads": 32, "vocabulary": 32_000, "rounds": 3, "steps": 3}
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size)


def main(options: argparse.Namespace, report: Report) -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # of deterministic algorithms
    torch.backends.cuda.enable_cudnn_sdp(False)  # its gradients are never the same twice
    torch.utils.deterministic.fill_uninitialized_memory = False  # which no training does
    accelerator = accelerator_named(options.device)
    deadline = perf_counter() + options.budget
    report.conditions = f"{accelerator.name}, {torch.get_num_threads()} compute threads, {report.conditions}"
    report.begin(COLUMNS)
    report.measured["found"] = {}
    for length in options.length or (4096, 8192, 16_384):
        bench = Bench(options, length, accelerator)
        bare = bare_seconds(accelerator, (256 if accelerator.module is not None else 1) << 20)
        rows = measure(options, bench, deadline)
        for name, row in rows.items():
            report.row({"length": str(length)} | cells(name, rows, bare))
            times = {key: list(row[key].values()) for key in ("seconds", "peaks")}
            report.measured["found"].setdefault(str(length), {})[name] = row | times
        accelerator.clear()
