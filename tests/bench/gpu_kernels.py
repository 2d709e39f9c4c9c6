"""Codecs on a device: how fast they read and write memory, as a fraction of what a copy on the device reaches.

    python tests/bench/gpu_kernels.py                       # on CUDA, in a minute
    python tests/bench/gpu_kernels.py --device cpu --elements 100000 --rounds 2

Bandwidth counts what is read and written once: the elements and the payload. Each figure is the best of ``--rounds``
rounds of twenty calls, which take turns with the copy. Prints a Markdown table; ``--json FILE`` keeps everything.
"""

import argparse
import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor

from tensorstash.backends import torch_operators, torch_triton
from tensorstash.backends.torch_device_kernels import device_kernel
from tensorstash.codecs import Affine, AsType, PackBits, TwoValued
from tensorstash.spec import TensorSpec, contiguous_strides

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


def seconds(call: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds of one of CALLS calls."""
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(CALLS):
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1000 / CALLS
    started = perf_counter()
    for _ in range(CALLS):
        call()
    return (perf_counter() - started) / CALLS


def contents(codec: object, dtype: str, count: int, device: torch.device) -> Tensor:
    values = torch.randn(count // 1024, 1024, device=device)
    if isinstance(codec, (PackBits, TwoValued)):
        values = (values > 0).float() * 1.25
    return values.to(getattr(torch, dtype))


def measure(codec: Any, dtype: str, operators: Any, options: argparse.Namespace) -> dict[str, Any] | None:
    """Return bandwidths in bytes per second, of the best round; None if these operators do not run the codec."""
    device = torch.device(options.device)
    dense = contents(codec, dtype, options.elements, device)
    shape = tuple(dense.shape)
    spec = TensorSpec(shape, contiguous_strides(shape), 0, dtype, str(dense.device))
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
    for call, _ in calls.values():
        seconds(call, device)
    best = dict.fromkeys(calls, 0.0)
    for _ in range(options.rounds):
        for name, (call, nbytes) in calls.items():
            best[name] = max(best[name], nbytes / seconds(call, device))
    name = operators.__name__.rpartition(".")[2].removeprefix("torch_")
    return {"codec": repr(codec), "dtype": dtype, "operators": name, "payload": payload.nbytes / dense.nbytes, **best}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--elements", type=int, default=1 << 28)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    is_cuda = options.device.startswith("cuda")
    if is_cuda and not torch.cuda.is_available():
        raise SystemExit("no CUDA device; --device cpu runs PyTorch's operators, with --elements to match")
    name = torch.cuda.get_device_name(options.device) if is_cuda else platform.machine()
    print(f"{name}, PyTorch {torch.__version__}, {options.elements} elements\n")
    print("| codec | dtype | by | payload | encode GB/s | of copy | decode GB/s | of copy |")
    print("|---|---|---|---|---|---|---|---|")
    rows = []
    for codec, dtype in CASES:
        for operators in (torch_triton, torch_operators) if is_cuda and torch_triton.AVAILABLE else (torch_operators,):
            row = measure(codec, dtype, operators, options)
            if row is None:
                continue
            rows.append(row)
            encode, decode, copy = row["encode"], row["decode"], row["copy"]
            print(
                f"| {row['codec']} | {dtype} | {row['operators']} | {row['payload']:.3f} | {encode / 1e9:.1f} "
                f"| {encode / copy:.2f} | {decode / 1e9:.1f} | {decode / copy:.2f} |",
                flush=True,
            )
            if options.json:
                options.json.write_text(json.dumps({"device": name, "torch": torch.__version__, "rows": rows}))


if __name__ == "__main__":
    main()
