"""Codecs on a device: how fast they read and write memory, as a fraction of what a copy on the device reaches.

    python -m benchmarks torch_gpu_kernels                  # on CUDA, in a minute
    python -m benchmarks torch_gpu_kernels --device cpu --elements 100000 --rounds 2

Bandwidth counts what is read and written once: the elements and the payload. Each figure is the best of ``--rounds``
rounds of twenty calls, which take turns with the copy.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import runner
from benchmarks.harness.report import Report, machine
from benchmarks.harness.torch_accelerator import accelerator_named
from tensorstash.backends.torch import operators as torch_operators
from tensorstash.backends.torch import triton as torch_triton
from tensorstash.backends.torch.device_kernels import device_kernel
from tensorstash.codecs import Affine, AsType, PackBits, TwoValued
from tensorstash.testing.contents import dense_spec

CASES = [
    *((Affine(bits=bits), dtype) for bits in (8, 4, 2) for dtype in ("bfloat16", "float16", "float32")),
    (Affine(bits=4, rounding="stochastic"), "bfloat16"),
    (Affine(bits=8, group_size=100), "bfloat16"),
    *((AsType(dtype=dtype), "float32") for dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2")),
    (AsType(dtype="float8_e4m3fn"), "bfloat16"),
    (PackBits(), "bool"),
    (TwoValued(), "bfloat16"),
]
CALLS = 20
HEADS = ("codec", "dtype", "by", "payload", "encode GB/s", "of copy", "decode GB/s", "of copy")


def seconds(call: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds of one of CALLS calls."""

    def calls() -> None:
        for _ in range(CALLS):
            call()

    if device.type != "cuda":
        return runner.seconds(calls) / CALLS
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    calls()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000 / CALLS


def contents(codec: object, dtype: str, count: int, device: torch.device) -> Tensor:
    values = torch.randn(count // 1024, 1024, device=device)
    if isinstance(codec, (PackBits, TwoValued)):
        values = (values > 0).float() * 1.25
    return values.to(getattr(torch, dtype))


def measure(codec: Any, dtype: str, operators: Any, options: argparse.Namespace) -> dict[str, Any] | None:
    """Return bandwidths in bytes per second, of the best round; None if these operators do not run the codec."""
    device = torch.device(options.device)
    dense = contents(codec, dtype, options.elements, device)
    spec = replace(dense_spec(tuple(dense.shape), dtype), device=str(dense.device))
    kernel = device_kernel(codec, spec, operators)
    if kernel is None:
        return None
    payload = kernel.encode(dense)
    source = torch.empty(options.elements * 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    calls: dict[str, tuple[Callable[[], Any], int]] = {
        "copy": (lambda: target.copy_(source), 2 * source.nbytes),
        "encode": (lambda: kernel.encode(dense), dense.nbytes + payload.nbytes),
        "decode": (lambda: kernel.decode(payload), dense.nbytes + payload.nbytes),
    }
    timed = {name: partial(seconds, call, device) for name, (call, _) in calls.items()}
    runner.interleave(timed, 1)  # warms up
    times = runner.interleave(timed, options.rounds)
    name = operators.__name__.rpartition(".")[2].removeprefix("torch_")
    best = {name: nbytes / min(times[name]) for name, (_, nbytes) in calls.items()}
    return {"codec": repr(codec), "dtype": dtype, "operators": name, "payload": payload.nbytes / dense.nbytes, **best}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--elements", type=int, default=1 << 28)
    parser.add_argument("--rounds", type=int, default=5)


def main(options: argparse.Namespace, report: Report) -> int:
    accelerator = accelerator_named(options.device)
    device, name = accelerator.device, accelerator.name
    report.conditions = f"{name}, {machine(['torch'])}, {options.elements} elements"
    report.begin(*HEADS, left=HEADS[:3])
    rows = report.measured["rows"] = []
    report.measured["device"] = name
    has_triton = device.type == "cuda" and torch_triton.AVAILABLE
    for codec, dtype in CASES:
        for operators in (torch_triton, torch_operators) if has_triton else (torch_operators,):
            row = measure(codec, dtype, operators, options)
            if row is None:
                continue
            rows.append(row)
            speeds = [
                cell
                for way in ("encode", "decode")
                for cell in (f"{row[way] / 1e9:.1f}", f"{row[way] / row['copy']:.2f}")
            ]
            report.row(row["codec"], dtype, row["operators"], f"{row['payload']:.3f}", *speeds)
    return 0
