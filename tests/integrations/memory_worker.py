"""Trains once in a process of its own, and prints its peak and what was stashed: ``memory_worker.py CELL``.

``CELL`` has the fields of a cell of the matrix, in JSON; the trainer ``blocks:BACKEND`` is a model whose blocks
``torch.compile`` compiles.
"""

import ctypes
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tensorstash as ts
from tensorstash.host.pages import peak_bytes

STEPS = 2
POLICY = "disk_spill"


def in_a_trainer(given: dict[str, Any]) -> ts.Stats:
    import trainers

    # Checkpoints leave an input per layer, so that there have to be more layers, and narrow ones: or the peak is where
    # the optimizer steps. What a process takes once, however much it stashes (threads, idle buffers), is about 12 MiB:
    # the rest has to be several times as much.
    sizes = (64, 60, 16, 256) if given["checkpointing"] else (64, 4, 24, 256)
    trainers.SIZES = trainers.Sizes(*sizes)
    trainers.STEPS = STEPS
    trainers.OPTIONS.update(limits=ts.Limits(), min_bytes="64 KiB")
    with tempfile.TemporaryDirectory() as directory:
        return trainers.train(trainers.Cell(**given, policy=POLICY), Path(directory)).stats


def in_compiled_blocks(backend: str, where: str) -> ts.Stats:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)) for _ in range(6)]
    model = nn.Sequential(*blocks)
    for block in model:
        block.compile(backend=backend)
    handle = ts.wrap(model, POLICY) if where == "callback" else None
    x: Any = torch.randn(4096, 512)
    for _ in range(STEPS):
        model(x).square().mean().backward()
    return handle.stats() if handle else ts.Stats()


def main(cell: str) -> None:
    """Train, and print a line of JSON."""
    given: dict[str, Any] = json.loads(cell)
    # Freed blocks of more than this go back to the system at once, so that what is resident is what is in use.
    ctypes.CDLL(None).mallopt(-3, 2**16)  # M_MMAP_THRESHOLD
    ctypes.CDLL(None).malloc_trim(0)
    kind, _, backend = given["trainer"].partition(":")
    stats = in_compiled_blocks(backend, given["where"]) if kind == "blocks" else in_a_trainer(given)
    batches = STEPS * given["accumulation"]
    print(json.dumps({"peak": peak_bytes(), "stashed": stats.stashed.nbytes // batches, "advice": stats.advice}))


if __name__ == "__main__":
    main(*sys.argv[1:])
