"""Trains compiled blocks, each policy in a copy of this process: ``memory_worker.py BACKEND POLICY ...``."""

import ctypes
import json
import sys
from typing import Any

import torch
from torch import nn

import tensorstash as ts
from tensorstash.host.pages import peak_bytes

STEPS = 2


def main(number: int, backend: str, policies: list[str]) -> None:
    """Train, and print a line of JSON: the peak of the process, and what a step stashes."""
    # Freed blocks of more than this go back to the system at once, so that what is resident is what is in use.
    ctypes.CDLL(None).mallopt(-3, 2**16)  # M_MMAP_THRESHOLD
    ctypes.CDLL(None).malloc_trim(0)
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)) for _ in range(6)]
    model = nn.Sequential(*blocks)
    for block in model:
        block.compile(backend=backend)
    handle = ts.wrap(model, policies[number])
    x: Any = torch.randn(2048, 512)
    for _ in range(STEPS):
        model(x).square().mean().backward()
    stats = handle.stats()
    print(json.dumps({"peak": peak_bytes(), "stashed": stats.stashed.nbytes // STEPS, "advice": stats.advice}))


if __name__ == "__main__":
    torch.compile(nn.Linear(1, 1), backend="aot_eager")(torch.ones(1)).backward()  # imports the compiler
    torch.multiprocessing.start_processes(main, (sys.argv[1], sys.argv[2:]), len(sys.argv[2:]), start_method="fork")
