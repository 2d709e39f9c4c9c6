"""Training steps on a device: memory, time and copies under our policies and under their rivals.

    python -m benchmarks torch_device                              # a GPT on CUDA, within ten minutes
    python -m benchmarks torch_device --device xpu                 # or any other accelerator of PyTorch
    python -m benchmarks torch_device --llama --width 2048 --depth 16 --vocabulary 128256
    python -m benchmarks torch_device --device cpu --width 64 --depth 2 --heads 2 --length 64

A method is a name of METHODS or a policy as one line. All run in one process, on one model, and take turns. Memory is
the peak that the device's allocator has handed out, less what it held before the step. The ratio of a step is the
median of those between steps of one turn, ± its standard error.
"""

import argparse
import gc
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from statistics import median, stdev
from time import perf_counter
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody gives it

import tensorstash as ts
from benchmarks.harness.report import Report, columns
from benchmarks.harness.torch_accelerator import Accelerator, accelerator_named
from benchmarks.models import Model
from benchmarks.models import torch as pytorch
from benchmarks.models.networks import GPT, new

NONE = "none"
METHODS = (
    *(NONE, "checkpoint", "save_on_cpu pinned", "trl", "cpu_offload", "recompute | cpu_offload"),
    *("checkpoint, save_on_cpu pinned", "checkpoint, trl", "checkpoint, cpu_offload", "checkpoint | cpu_offload"),
    *("auto@4GiB", "checkpoint | cpu_offload@4GiB", "quantize:bits=4 | cpu_offload", "quantize:bits=8"),
    *("save_on_cpu", "cpu_offload | disk_spill"),
)

WRAPPED = ("checkpoint |", "auto")
"""Policies with blocks, which wrap the model."""

COLUMNS = columns("""
    length:> | method | peak GiB:.2f | of none:.3f | step ms:.1f | of none's:> |
    page-locked GiB, of payload:> | gradients | failure
""")


Scope = Callable[[], AbstractContextManager[Any]]


@contextmanager
def entered(name: str, model: Any) -> Iterator[tuple[Scope, Any]]:
    """Yield what a method needs around each forward pass of a model, and the session of a policy; else None."""
    head, _, rest = name.partition(", ")
    checkpoint(model, head == "checkpoint")
    policy, _, size = (rest if head == "checkpoint" else name).partition("@")
    kind, budget = next(model.parameters()).device.type, size or None
    if policy in (NONE, ""):
        yield nullcontext, None
    elif policy.startswith("save_on_cpu"):
        places = {"pin_memory": policy.endswith(" pinned") and kind != "cpu"}
        places["device_type"] = "cuda" if kind == "cpu" else kind
        yield partial(torch.autograd.graph.save_on_cpu, **places), None
    elif policy == "trl":
        from trl.models.activation_offloading import OffloadActivations

        try:
            offload = OffloadActivations()
        except AttributeError as lack:
            raise NotImplementedError(f"does not take the device: {lack}") from lack
        yield lambda: offload, None
    elif policy.startswith(WRAPPED):
        with ts.wrap(model, policy, budget=budget) as session:
            yield nullcontext, session
    else:
        scope = ts.stash(policy, budget=budget, framework="torch")
        yield lambda: scope, scope


def checkpoint(model: Any, is_on: bool) -> None:
    """Let PyTorch recompute each block of a model, or no block."""
    if not isinstance(model, transformers.LlamaForCausalLM):
        model.recompute = is_on
    elif is_on:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    else:
        model.gradient_checkpointing_disable()


def gpt(options: argparse.Namespace, length: int) -> nn.Module:
    sizes = {name: getattr(options, name) for name in ("batch", "depth", "width", "heads", "vocabulary")}
    model: nn.Module = new(pytorch, GPT, Model(framework="torch", network="gpt", rate=0.0, context=length, **sizes))
    return model


def llama(options: argparse.Namespace, length: int) -> nn.Module:
    """Return a model of Transformers with a fourth of its queries for keys, and linear layers of four widths."""
    config = transformers.LlamaConfig(
        hidden_size=options.width,
        intermediate_size=4 * options.width,
        num_hidden_layers=options.depth,
        num_attention_heads=options.heads,
        num_key_value_heads=max(options.heads // 4, 1),
        vocab_size=options.vocabulary,
        max_position_embeddings=length,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config)


class Bench:
    """A model on a device, and the measurements of one length of sequences."""

    def __init__(self, options: argparse.Namespace, length: int, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        torch.manual_seed(0)
        with accelerator.device:
            self.model: Any = (llama if options.llama else gpt)(options, length).to(torch.bfloat16)
            self.batch = torch.randint(options.vocabulary, (options.batch, length + 1))

    def step(self, scope: Scope) -> None:
        with scope():
            logits = self.model(self.batch[:, :-1])
            logits = getattr(logits, "logits", logits)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), self.batch[:, 1:].flatten())
        loss.backward()

    def timed(self, scope: Scope) -> tuple[float, int]:
        """Return the seconds of a step and the bytes that the device's allocator handed out on top."""
        self.model.zero_grad(set_to_none=False)
        return self.accelerator.timed(partial(self.step, scope))

    def gradients(self, scope: Scope) -> list[Tensor]:
        self.model.zero_grad(set_to_none=False)
        for is_lenient in (False, True):
            torch.use_deterministic_algorithms(True, warn_only=is_lenient)  # attention is only where it is no warning
            try:
                self.step(scope)
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
    """Return what was measured, by method and name, ``seconds`` and ``peaks`` of each step; or its ``failure``."""
    rows: dict[str, dict[str, Any]] = {}
    expected: list[Tensor] | None = None
    begun = perf_counter()
    for name in dict.fromkeys([NONE, *(options.method or METHODS)]):
        row = rows[name] = {"seconds": [], "peaks": []}
        if perf_counter() > begun + (deadline - begun) / 2:  # the other half is for turns
            row["failure"] = "no time left"
            continue
        with failures(row), entered(name, bench.model) as (scope, session):
            gradients = bench.gradients(scope)
            if expected is None:
                # The same again: what differs then is the device's doing.
                expected, gradients = gradients, bench.gradients(scope)
            row["gradients"] = compare(gradients, expected)
            del gradients
            bench.timed(scope)
            row["stats"] = {} if session is None else session.stats().to_dict()
        bench.accelerator.clear()
    del expected
    for turn in range(options.rounds):
        for name in list(rows)[:: 1 if turn % 2 else -1]:
            row = rows[name]
            if perf_counter() > deadline or "failure" in row:
                continue
            with failures(row), entered(name, bench.model) as (scope, session):
                for _ in range(1 if session is None else 4):  # borders settle after three steps
                    bench.timed(scope)  # warms up
                for _ in range(options.steps):
                    for found, value in zip((row["seconds"], row["peaks"]), bench.timed(scope), strict=True):
                        found.append(value)
            bench.accelerator.clear()
    return rows


def cells(row: Mapping[str, Any], none: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of a method beside no method, by head."""
    ratios = [ours / theirs for ours, theirs in zip(row["seconds"], none["seconds"], strict=False)]
    if not ratios:
        return {"failure": row.get("failure", "no time left")}
    error = 1.2533 * stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0  # of a median of normal values
    found = {
        "step ms": 1e3 * median(row["seconds"]),
        "of none's": f"{median(ratios):.3f}" + (f" ± {error:.3f}" if error else ""),
        "gradients": row["gradients"],
    }
    peak, most = max(row["peaks"]), max(none["peaks"])
    found |= {"peak GiB": peak / 2**30, "of none": peak / most} if peak else {}
    payload, pinned = (row["stats"].get(name) for name in ("peak_bytes", "pinned_bytes"))
    if pinned and payload:
        found["page-locked GiB, of payload"] = f"{pinned / 2**30:.3f}, {pinned / payload:.3f}"
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cuda", help="of any accelerator of PyTorch, or cpu")
    parser.add_argument("--length", nargs="+", type=int, default=[4096, 8192, 16_384], help="of the sequences")
    parser.add_argument("--method", action="append")
    parser.add_argument("--llama", action="store_true", help="a Llama of Transformers instead of a GPT")
    parser.add_argument("--budget", type=float, default=540, help="seconds after which nothing new is measured")
    sizes = {"width": 4096, "depth": 8, "batch": 1, "heads": 32, "vocabulary": 32_000, "rounds": 3, "steps": 3}
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size)


def main(options: argparse.Namespace, report: Report) -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # of deterministic algorithms
    torch.backends.cuda.enable_cudnn_sdp(False)  # its gradients are never the same twice
    torch.utils.deterministic.fill_uninitialized_memory = False  # which no training does
    accelerator = accelerator_named(options.device)
    gc.freeze()  # imported modules, which clear() would look through
    deadline = perf_counter() + options.budget
    report.begin(COLUMNS, "", accelerator.name, f"{torch.get_num_threads()} compute threads")
    report.measured["found"] = {}
    for length in options.length:
        bench = Bench(options, length, accelerator)
        found = report.measured["found"][str(length)] = measure(options, bench, deadline)
        for name, row in found.items():
            report.row({"length": str(length), "method": name} | cells(row, found[NONE]))
        accelerator.clear()
