"""Trains compiled blocks, and prints the peak and what was stashed: ``memory_worker.py BACKEND POLICY``."""

import ctypes
import json
import sys
from typing import Any

import torch
from torch import nn

import tensorstash as ts
from tensorstash.host.pages import peak_bytes

STEPS = 2


def main(backend: str, policy: str) -> None:
    """Train, and print a line of JSON."""
    # Freed blocks of more than this go back to the system at once, so that what is resident is what is in use.
    ctypes.CDLL(None).mallopt(-3, 2**16)  # M_MMAP_THRESHOLD
    ctypes.CDLL(None).malloc_trim(0)
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 128)) for _ in range(6)]
    model = nn.Sequential(*blocks)
    for block in model:
        block.compile(backend=backend)
    handle = ts.wrap(model, policy)
    x: Any = torch.randn(16384, 128)
    for _ in range(STEPS):
        model(x).square().mean().backward()
    stats = handle.stats()
    print(json.dumps({"peak": peak_bytes(), "stashed": stats.stashed.nbytes // STEPS, "advice": stats.advice}))


if __name__ == "__main__":
    main(*sys.argv[1:])
