"""Every codec on what real models save: ratio, speed as a fraction of memcpy, and error.

    python tests/bench/codec_table.py                              # GPTs and ResNet in PyTorch, GPT in PaddlePaddle
    python tests/bench/codec_table.py --workload torch:resnet --markdown table.md --json table.json

A workload is trained a little, and what its next step saves is sorted by content. Floats are also measured rounded to
``bfloat16``. Every time is the smallest of ``--rounds``, in which plain copies of the same tensors into memory that is
there already, the codecs, and Zstandard's level 1 on the raw bytes, which are not copied for it, take turns on one
thread; a speed is the time of the copy over that of the codec. ``limit`` is the ratio of an ideal coder of single
bytes: by the entropy of each byte plane of what is not zero, and of the mask, or of the values, whichever is smaller.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "codecs")]

import numpy as np  # noqa: E402
import zstandard  # noqa: E402

from tensorstash.buffers import Array, as_bytes, borrowed  # noqa: E402
from tensorstash.codecs import (  # noqa: E402
    Affine,
    AsType,
    FloatSplit,
    FrameOfReference,
    Lossless,
    PackBits,
    Sparse,
    TwoValued,
    Zstd,
)
from tensorstash.kernels.floats import narrow, widen  # noqa: E402
from tensorstash.protocols import Codec  # noqa: E402
from tensorstash.spec import TensorSpec  # noqa: E402
from tensorstash.testing.contents import dense_spec  # noqa: E402

WORKLOADS = ("torch:gpt", "torch:gpt-long", "torch:resnet", "paddle:gpt")
CODECS: tuple[Codec, ...] = (
    Lossless(),
    Lossless(level=2),
    Lossless(level=4),
    PackBits(),
    TwoValued(),
    FrameOfReference(),
    Sparse(),
    Sparse(split_floats=True),
    FloatSplit(),
    Zstd(),
    Affine(bits=8),
    Affine(bits=4),
    Affine(bits=2),
    Affine(bits=8, rounding="stochastic"),
    Affine(bits=4, rounding="stochastic"),
    Affine(bits=2, rounding="stochastic"),
    AsType(dtype="bfloat16"),
    AsType(dtype="float16"),
    AsType(dtype="float8_e4m3fn"),
    AsType(dtype="float8_e5m2"),
)
SMALLEST = 1 << 16


@dataclass
class Row:
    """One codec on all tensors of one kind."""

    workload: str
    kind: str
    dtype: str
    nbytes: int
    limit: float
    codec: str
    ratio: float
    encode: float
    decode: float
    error: float
    encode_to_zstd: float


def captured(workload: str, steps: int, scale: int) -> list[tuple[Array, str]]:
    framework, model = workload.split(":")
    if framework == "torch":
        import torch
        from torch_captured import capture

        torch.set_num_threads(1)
    else:
        from paddle_captured import capture
    return [(data, dtype) for data, dtype in capture(model, steps, scale) if data.nbytes >= SMALLEST]


def kind_of(data: Array, dtype: str) -> str:
    if dtype == "bool":
        return "boolean"
    if not dtype.startswith(("float", "bfloat")):
        return "integer"
    words = data.reshape(-1).view(f"u{data.itemsize}")
    if np.unique(words[:4096]).size <= 2 and np.unique(words).size <= 2:
        return "two-valued"
    zeros = 1 - np.count_nonzero(words) / words.size
    if zeros < 0.1:
        return "dense"
    return "zeros in runs" if _in_runs(words == 0) else "zeros scattered"


def _in_runs(zero: Array) -> bool:
    """Whether zeros lie together, as in causal attention, more than chance would have them."""
    changes = np.count_nonzero(zero[1:] != zero[:-1]) / zero.size
    share = zero.mean()
    return bool(changes < share * (1 - share))


def entropy(symbols: Array) -> float:
    """Return the bits per symbol that an ideal coder of single symbols takes."""
    if symbols.dtype == np.uint8:
        counts = np.bincount(symbols, minlength=256)
    else:
        counts = np.unique(symbols, return_counts=True)[1]
    share = counts[counts > 0] / max(symbols.size, 1)
    return float(-(share * np.log2(share)).sum())


def limit_bytes(data: Array) -> float:
    words = data.reshape(-1).view(f"u{data.itemsize}")
    there = words[words != 0]
    planes = as_bytes(there).reshape(-1, data.itemsize).T
    mask = entropy((words != 0).astype(np.uint8)) * words.size
    split = mask + sum(entropy(np.ascontiguousarray(plane)) for plane in planes) * there.size
    whole = entropy(words) * words.size if np.unique(words[: 1 << 12]).size < 1 << 11 else np.inf
    return min(split, whole) / 8


def in_bfloat16(data: Array, dtype: str) -> tuple[Array, str]:
    if dtype != "float32":
        return data, dtype
    return narrow(np.ascontiguousarray(data).reshape(-1), "bfloat16").reshape(data.shape), "bfloat16"


def ways(codec: Codec, spec: TensorSpec, framework: str) -> tuple[Callable[[Array], Any], Callable[[Any], Any]]:
    """Return encode and decode, by the framework's kernel where it has one."""
    if framework == "torch":
        import torch

        from tensorstash.backends import backend_named

        kernel = backend_named("torch").kernel(codec, spec)  # type: ignore[attr-defined]
        if kernel is not None:
            kind = getattr(torch, spec.dtype)
            return lambda data: kernel.encode(torch.from_numpy(data).view(kind)), kernel.decode
    return lambda data: codec.encode(borrowed(data), spec), lambda payload: codec.decode(borrowed(payload), spec)


def least(calls: list[Callable[[], Any]], rounds: int) -> list[float]:
    """Return the smallest time of each call, which take turns."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for n, call in enumerate(calls):
            started = perf_counter()
            call()
            best[n] = min(best[n], perf_counter() - started)
    return best


def values_of(data: Array, dtype: str) -> Array:
    return widen(data.reshape(-1), dtype) if dtype == "bfloat16" else data.reshape(-1).astype(np.float64)


def measure(workload: str, tensors: list[tuple[Array, str]], kind: str, rounds: int) -> list[Row]:
    """Return the rows of all codecs on tensors of one dtype."""
    framework, dtype = workload.split(":")[0], tensors[0][1]
    nbytes = sum(data.nbytes for data, _ in tensors)
    limit = nbytes / sum(limit_bytes(data) for data, _ in tensors)
    zstd = zstandard.ZstdCompressor(level=1)
    memory = np.empty(max(data.nbytes for data, _ in tensors), np.uint8)
    rows = []
    for codec in CODECS:
        specs = [dense_spec(data.shape, dtype) for data, _ in tensors]
        if not all(codec.accepts(spec) for spec in specs):
            continue
        copy = there = back = naive = stored = wrong = total = 0.0
        for (data, _), spec in zip(tensors, specs, strict=True):
            encode, decode = ways(codec, spec, framework)
            payload = encode(data)
            raw, target = as_bytes(data), memory[: data.nbytes]
            calls: list[Callable[[], Any]] = [
                lambda raw=raw, target=target: np.copyto(target, raw),
                lambda encode=encode, data=data: encode(data),
                lambda decode=decode, payload=payload: decode(payload),
                lambda raw=raw: zstd.compress(raw),
            ]
            times = least(calls if codec == CODECS[0] or codec.lossless else calls[:3], rounds)
            copy, there, back = copy + times[0], there + times[1], back + times[2]
            naive += times[3] if len(times) > 3 else 0
            stored += payload.nbytes
            if not codec.lossless:
                value = values_of(data, dtype)
                array = codec.decode(codec.encode(borrowed(data), spec), spec)
                wrong += float(((values_of(array, dtype) - value) ** 2).sum(dtype=np.float64))
                total += float((value**2).sum(dtype=np.float64))
        error = (wrong / total) ** 0.5 if total else 0.0
        shares = (nbytes / stored, copy / there, copy / back, error, naive / there)
        rows.append(Row(workload, kind, dtype, nbytes, limit, repr(codec), *shares))
    return rows


def mix(workload: str, tensors: list[tuple[Array, str]]) -> dict[str, Any]:
    """Return what the chosen codecs make of a whole step, and the limit."""
    nbytes = sum(data.nbytes for data, _ in tensors)
    limit = nbytes / sum(limit_bytes(data) for data, _ in tensors)
    found = {"workload": workload, "dtype": "bfloat16" if any(d == "bfloat16" for _, d in tensors) else "float32"}
    for codec in (Lossless(), Lossless(level=2), Lossless(level=4)):
        stored = sum(codec.encode(borrowed(data), dense_spec(data.shape, dtype)).nbytes for data, dtype in tensors)
        found[repr(codec)] = nbytes / stored
    return {**found, "limit": limit, "nbytes": nbytes}


def machine() -> dict[str, str]:
    names = ("numpy", "zstandard", "torch", "paddlepaddle")
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
    found = {name: version(name) for name in names}
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    date = datetime.now(UTC).date().isoformat()
    return {
        "date": date,
        "cpu": f"{cpu} ({os.cpu_count()})",
        "load": load,
        "python": platform.python_version(),
        **found,
    }


def markdown(rows: list[Row], mixes: list[dict[str, Any]], where: dict[str, str]) -> str:
    lines = ["# Codecs on what real models save", "", ", ".join(f"{k} {v}" for k, v in where.items()), ""]
    lines += ["Whole steps: how many times smaller, and the limit of a coder of single bytes.", ""]
    lines += ["| workload | dtype | MiB | limit | level 1 | level 2 | level 4 |", "|---|---|---|---|---|---|---|"]
    for found in mixes:
        levels = [f"{found[repr(codec)]:.2f}" for codec in (Lossless(), Lossless(level=2), Lossless(level=4))]
        cells = [found["workload"], found["dtype"], f"{found['nbytes'] / 2**20:.1f}", f"{found['limit']:.2f}", *levels]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "Encode and decode are fractions of the speed of a copy; x zstd is encoding against Zstandard 1.",
        "",
    ]
    lines += ["| workload | content | dtype | MiB | limit | codec | ratio | encode | decode | x zstd | error |"]
    lines += ["|---" * 11 + "|"]
    for row in rows:
        against = f"{row.encode_to_zstd:.1f}" if row.encode_to_zstd else ""
        cells = [row.workload, row.kind, row.dtype, f"{row.nbytes / 2**20:.1f}", f"{row.limit:.2f}", f"`{row.codec}`"]
        cells += [f"{row.ratio:.2f}", f"{row.encode:.2f}", f"{row.decode:.2f}", against]
        lines.append(f"| {' | '.join(cells)} | {f'{row.error:.1e}' if row.error else ''} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", action="append", choices=WORKLOADS)
    parser.add_argument("--steps", type=int, default=80, help="of training before the captured one")
    parser.add_argument("--scale", type=int, default=8, help="of the batch")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--most", type=int, default=3, help="tensors of a kind that are measured, the largest first")
    parser.add_argument("--markdown", type=Path, help="also written to this file")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows: list[Row] = []
    mixes: list[dict[str, Any]] = []
    for workload in arguments.workload or WORKLOADS:
        tensors = captured(workload, arguments.steps, arguments.scale)
        mixes += [mix(workload, tensors), mix(workload, [in_bfloat16(*saved) for saved in tensors])]
        groups: dict[tuple[str, str], list[tuple[Array, str]]] = {}
        for data, dtype in sorted(tensors, key=lambda saved: -saved[0].nbytes):
            groups.setdefault((kind_of(data, dtype), dtype), []).append((data, dtype))
        for (kind, dtype), members in sorted(groups.items()):
            some = members[: arguments.most]
            rows += measure(workload, some, kind, arguments.rounds)
            if dtype == "float32":
                rows += measure(workload, [in_bfloat16(*saved) for saved in some], kind, arguments.rounds)
    where = machine()
    text = markdown(rows, mixes, where)
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text, encoding="utf-8")
    if arguments.json:
        report = {"machine": where, "mixes": mixes, "rows": [asdict(row) for row in rows]}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
