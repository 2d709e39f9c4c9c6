"""Every codec on what real models save: ratio, speed as a fraction of memcpy, and error.

    python -m benchmarks codecs                            # GPTs and ResNet in PyTorch, GPT in PaddlePaddle
    python -m benchmarks codecs --workload torch:resnet --markdown table.md --json table.json
    python -m benchmarks codecs --workload random --device cuda        # the kernels of a device of PyTorch

A workload is trained a little, in a process of its own, and what its next step saves, each storage once and without
parameters, is sorted by content. Floats are also measured rounded to ``bfloat16``. Every time is the smallest of
``--rounds``, in which copies into memory that is there already, the codecs, and Zstandard's level 1 on the raw bytes
take turns on one thread; a speed is the time of the copy over that of the codec. ``limit`` is the ratio of an ideal
coder of single bytes: of each byte plane of what is not zero, and of the mask; or of the values, if that is less.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import zstandard

import tensorstash as ts
from benchmarks.harness.report import Report, columns
from benchmarks.harness.runner import alone, interleave, seconds
from benchmarks.models import Model, build
from tensorstash.host.arrays import Array, as_bytes, borrowed
from tensorstash.kernels.floats import narrow
from tensorstash.protocols import Codec
from tensorstash.testing.contents import dense_spec, float_values
from tensorstash.testing.labs import lab_of

Saved = tuple[Array, str]
"""Carrier bits of one tensor, and the dtype."""


def codecs_of(lines: str) -> tuple[Codec, ...]:
    """Return codecs from their lines, such as ``"shuffle zstd:level=9"``."""
    return tuple(ts.parse(line).codec for line in lines.split())


def dense_bits(backend: Any, tensor: Any) -> Array:
    """Return the elements of a tensor as codecs get them: carrier bits in the order of memory, private."""
    spec = backend.spec(tensor)
    return np.array(backend.to_host(tensor, spec)).reshape(spec.dense().shape)


EAGER = {"heads": 6, "context": 256, "dropout": 0.1, "eager": True}
GPT = Model(framework="torch", network="gpt", batch=1, rate=1e-3, depth=2, width=384, threads=1, **EAGER)
RESNET = Model(framework="torch", network="resnet", batch=8, rate=1e-3, depth=3, width=16, stages=2, threads=1)
WORKLOADS = {
    "torch:gpt": GPT,
    "torch:gpt-long": replace(GPT, context=1024),
    "torch:resnet": RESNET,
    "paddle:gpt": replace(GPT, framework="paddle", depth=6, dropout=0.0),
}
LOSSLESS = codecs_of("lossless lossless:level=2 lossless:level=4")
CODECS = LOSSLESS + codecs_of("""
pack_bits two_valued sparse zstd
affine:bits=8,rounding=nearest affine:bits=4,rounding=nearest affine:bits=2,rounding=nearest
affine:bits=8,rounding=stochastic affine:bits=4,rounding=stochastic affine:bits=2,rounding=stochastic
astype:dtype=bfloat16 astype:dtype=float16 astype:dtype=float8_e4m3fn astype:dtype=float8_e5m2
""")
RANDOM = "random"
"""A workload that trains nothing: normal floats, values of which half are zero, and booleans."""

COLUMNS = columns("""
    workload | content | dtype | MiB:.1f | limit:.2f | codec | ratio:.2f | encode:.2f | decode:.2f |
    x zstd:.1f | error:.1e
""")
WHOLE = columns("workload | dtype | MiB:.1f | limit:.2f | level 1:.2f | level 2:.2f | level 4:.2f")


def drawn(elements: int) -> list[Saved]:
    """Return random tensors."""
    normal = np.random.default_rng(0).standard_normal((max(elements // 1024, 1), 1024), np.float32)
    is_positive = normal > 0
    return [(normal, "float32"), (np.float32(1.25) * is_positive, "float32"), (is_positive, "bool")]


def captured(workload: str, steps: int, scale: int) -> list[Saved]:
    """Return what the step after ``steps`` of training saves; its batch is ``scale`` times as large."""
    model = WORKLOADS[workload]
    examples = scale * model.batch * 256 // (model.context or 256)
    training = build(replace(model, batch=max(examples, 1)))
    backend = lab_of(model.framework).backend
    saved: dict[object, Saved] = {}

    def pack(tensor: Any) -> Any:
        if backend.keep_reason(tensor) is None:
            # Views of one storage that begin at different places are parts of it, such as query, key and value.
            saved.setdefault(backend.storage(tensor), (dense_bits(backend, tensor), backend.spec(tensor).dtype))
        return tensor

    for step in range(steps):
        training.backward(training.forward(step))
        training.update()
    with ts.saved_tensors_hooks(pack, lambda tensor: tensor, framework=model.framework):
        training.forward(steps)
    return [(data, dtype) for data, dtype in saved.values() if data.nbytes >= 1 << 16]


def kind_of(data: Array, dtype: str) -> str:
    """Name the content of a tensor."""
    if dtype == "bool":
        return "boolean"
    if not dtype.startswith(("float", "bfloat")):
        return "integer"
    words = data.reshape(-1).view(f"u{data.itemsize}")
    if np.unique(words[:4096]).size <= 2 and np.unique(words).size <= 2:
        return "two-valued"
    zero = words == 0
    share = zero.mean()
    if share < 0.1:
        return "dense"
    # Whether zeros lie together, as in causal attention, more than chance would have them.
    changes = np.count_nonzero(zero[1:] != zero[:-1]) / zero.size
    return "zeros in runs" if changes < share * (1 - share) else "zeros scattered"


def entropy(symbols: Array) -> float:
    """Return the bits that an ideal coder of single symbols takes for all of them."""
    counts = np.unique(symbols, return_counts=True)[1]
    return float(-(counts * np.log2(counts / symbols.size)).sum()) if symbols.size else 0.0


def limit(tensors: list[Saved]) -> float:
    """Return the ratio that an ideal coder of single bytes reaches on all of them."""
    bits = 0.0
    for data, _ in tensors:
        words = data.reshape(-1).view(f"u{data.itemsize}")
        there = words[words != 0]
        split = entropy(words != 0) + sum(map(entropy, as_bytes(there).reshape(-1, data.itemsize).T))
        whole = entropy(words) if np.unique(words[: 1 << 12]).size < 1 << 11 else np.inf
        bits += min(split, whole)
    return sum(8 * data.nbytes for data, _ in tensors) / bits


def in_bfloat16(data: Array, dtype: str) -> Saved:
    if dtype != "float32":
        return data, dtype
    return narrow(np.ascontiguousarray(data).reshape(-1), "bfloat16").reshape(data.shape), "bfloat16"


class Memory:
    """Where codecs work: host memory, or that of a device of PyTorch, on which only kernels run."""

    def __init__(self, framework: str, device: str | None) -> None:
        self._lab, self._device = lab_of(framework), None
        if device is not None:
            from benchmarks.harness.torch_accelerator import accelerator_named

            self._device = accelerator_named(device)

    def calls(self, codec: Codec, data: Array, dtype: str) -> dict[str, Callable[[], float]] | None:
        """Return what times a codec, and the device with it, by name; None if it does not run here."""
        tensor, spec, raw = self._lab.tensor(data, dtype), dense_spec(data.shape, dtype), as_bytes(data)
        copy = partial(np.copyto, np.empty_like(raw), raw)
        if self._device is not None:
            tensor = tensor.to(self._device.device)
            copy, spec = tensor.clone, self._lab.backend.spec(tensor)
        kernels: Any = self._lab.backend.kernels
        kernel = None if kernels is None else kernels.kernel(codec, spec)
        if kernel is None and self._device is not None:
            return None
        worker, source, *told = (codec, borrowed(data), spec) if kernel is None else (kernel, tensor)
        encoded = worker.encode(source, *told)
        decode = partial(worker.decode, borrowed(encoded) if kernel is None else encoded, *told)
        found = {"copy": copy, "encode": partial(worker.encode, source, *told), "decode": decode}
        if codec.lossless:
            found["zstd"] = partial(zstandard.ZstdCompressor(level=1).compress, raw)
        return {name: partial(self._seconds, call) for name, call in found.items()}

    def _seconds(self, call: Callable[[], Any]) -> float:
        return seconds(call if self._device is None else lambda: (call(), self._device.synchronize()))


def measure(codec: Codec, tensors: list[Saved], memory: Memory, rounds: int) -> dict[str, float | None] | None:
    """Return what a codec makes of tensors of one dtype, by head; None if it does not take them."""
    spent: Counter[str] = Counter()
    nbytes = stored = wrong = total = 0.0
    for data, dtype in tensors:
        spec = dense_spec(data.shape, dtype)
        calls = memory.calls(codec, data, dtype) if codec.accepts(spec) else None
        if calls is None:
            return None
        for name, times in interleave(calls, rounds).items():
            spent[name] += min(times)
        payload = codec.encode(borrowed(data), spec)
        nbytes, stored = nbytes + data.nbytes, stored + payload.nbytes
        if not codec.lossless:
            value, found = (float_values(array, dtype) for array in (data, codec.decode(borrowed(payload), spec)))
            wrong += float(((found - value) ** 2).sum(dtype=np.float64))
            total += float((value**2).sum(dtype=np.float64))
    figures = {"ratio": nbytes / stored} | {name: spent["copy"] / spent[name] for name in ("encode", "decode")}
    error = (wrong / total) ** 0.5 if total else None
    return {**figures, "x zstd": spent["zstd"] / spent["encode"] or None, "error": error or None}


def whole(workload: str, tensors: list[Saved]) -> tuple[Any, ...]:
    """Return what the chosen codecs make of a whole step, and the limit: a row."""
    nbytes = sum(data.nbytes for data, _ in tensors)
    dtype = "bfloat16" if any(dtype == "bfloat16" for _, dtype in tensors) else "float32"
    given = [(borrowed(data), dense_spec(data.shape, dtype)) for data, dtype in tensors]
    stored = [sum(codec.encode(*each).nbytes for each in given) for codec in LOSSLESS]
    return workload, dtype, nbytes / 2**20, limit(tensors), *(nbytes / each for each in stored)


def work(
    workload: str, steps: int, scale: int, rounds: int, most: int, elements: int, device: str | None
) -> Generator[Any, None, list[tuple[Any, ...]]]:
    """Measure a workload: yield rows of the table of codecs; return those of the table of whole steps."""
    yield None
    tensors = drawn(elements) if workload == RANDOM else captured(workload, steps, scale)
    memory = Memory("torch" if workload == RANDOM else WORKLOADS[workload].framework, device)
    groups: dict[tuple[str, str], list[Saved]] = {}
    for data, dtype in sorted(tensors, key=lambda saved: -saved[0].nbytes):
        groups.setdefault((kind_of(data, dtype), dtype), []).append((data, dtype))
    for (kind, dtype), members in sorted(groups.items()):
        some = members[:most]
        for alike in [some] + [[in_bfloat16(*saved) for saved in some]] * (dtype == "float32"):
            size, bound = sum(data.nbytes for data, _ in alike) / 2**20, limit(alike)
            what = {"workload": workload, "content": kind, "dtype": alike[0][1], "MiB": size, "limit": bound}
            for codec in CODECS:
                found = measure(codec, alike, memory, rounds)
                if found is not None:
                    yield {**what, "codec": f"`{codec!r}`", **found}
    return [whole(workload, tensors), whole(workload, [in_bfloat16(*saved) for saved in tensors])]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workload", action="append", choices=[*WORKLOADS, RANDOM])
    parser.add_argument("--steps", type=int, default=80, help="of training before the captured one")
    parser.add_argument("--scale", type=int, default=8, help="of the batch")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--most", type=int, default=3, help="tensors of a kind that are measured, the largest first")
    parser.add_argument("--elements", type=int, default=1 << 26, help=f"of the tensors of {RANDOM}")
    parser.add_argument("--device", help="of PyTorch, whose kernels are measured; by default all codecs on the host")


def main(options: argparse.Namespace, report: Report) -> None:
    above = "Encode and decode are fractions of the speed of a copy; x zstd is encoding against Zstandard 1."
    report.begin(COLUMNS, before=above)
    told = {name: getattr(options, name) for name in ("steps", "scale", "rounds", "most", "elements", "device")}
    workloads = options.workload or WORKLOADS
    steps = [alone("codecs:work", workload, report.row, workload=workload, **told) for workload in workloads]
    report.begin(WHOLE, before="Whole steps: how many times smaller, and the limit of a coder of single bytes.")
    for row in chain.from_iterable(steps):
        report.row(row)
