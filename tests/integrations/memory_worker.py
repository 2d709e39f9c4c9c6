"""Trains once in a process of its own, and prints its peak and what was stashed: ``memory_worker.py NAME WHERE``.

``NAME`` is a trainer of the matrix, or ``blocks:BACKEND`` for a model whose blocks ``torch.compile`` compiles.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tensorstash as ts
from tensorstash.cli.memory import peak_bytes

STEPS = 3
LIMITS = ts.Limits(in_flight="8 MiB", ahead="8 MiB")
POLICY = "disk_spill"


def in_a_trainer(name: str, where: str) -> ts.Stats:
    import trainers

    trainers.SIZES.hidden, trainers.SIZES.layers, trainers.SIZES.batch, trainers.SIZES.length = 256, 4, 8, 256
    trainers.OPTIONS.update(limits=LIMITS, min_bytes="64 KiB")
    cell = trainers.Cell(name, "fp32", where, False, False, 1, POLICY)
    with tempfile.TemporaryDirectory() as directory:
        return trainers.train(cell, Path(directory)).stats


def in_compiled_blocks(backend: str, where: str) -> ts.Stats:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)) for _ in range(6)]
    model = nn.Sequential(*blocks)
    for block in model:
        block.compile(backend=backend)
    handle = ts.wrap(model, POLICY, limits=LIMITS) if where == "callback" else None
    x: Any = torch.randn(4096, 512)
    for _ in range(STEPS):
        model(x).square().mean().backward()
    return handle.stats() if handle else ts.Stats()


def main(name: str, where: str) -> None:
    """Train, and print a line of JSON."""
    torch.set_num_threads(1)
    kind, _, backend = name.partition(":")
    stats = in_compiled_blocks(backend, where) if kind == "blocks" else in_a_trainer(name, where)
    print(json.dumps({"peak": peak_bytes(), "stashed": stats.stashed.nbytes // STEPS, "advice": stats.advice}))


if __name__ == "__main__":
    main(*sys.argv[1:])
