"""Trains compiled blocks; writes the peak and what was stashed: ``memory_worker.py BACKEND DIRECTORY POLICY POLICY``.

Each policy has a process of its own, and a file of its number in the directory; they import everything together.
"""

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # as compiling would in each
import torch.multiprocessing as mp
from torch import nn

import tensorstash as ts
from tensorstash.host.pages import peak_bytes

STEPS = 2


def main(number: int, backend: str, directory: str, *policies: str) -> None:
    """Train, and write JSON."""
    # Freed blocks of more than this go back to the system at once, so that what is resident is what is in use.
    ctypes.CDLL(None).mallopt(-3, 2**16)  # M_MMAP_THRESHOLD
    ctypes.CDLL(None).malloc_trim(0)
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 128)) for _ in range(3)]
    model = nn.Sequential(*blocks)
    for block in model:
        block.compile(backend=backend)
    handle = ts.wrap(model, policies[number])
    x: Any = torch.randn(16384, 128)
    for _ in range(STEPS):
        model(x).square().mean().backward()
    stats = handle.stats()
    found = {"peak": peak_bytes(), "stashed": stats.stashed.nbytes // STEPS, "advice": stats.advice}
    Path(directory, str(number)).write_text(json.dumps(found))


if __name__ == "__main__":
    mp.start_processes(main, sys.argv[1:], nprocs=2, start_method="fork")
