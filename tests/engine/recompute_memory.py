"""Resident memory of a fresh process with and without Recompute.

Started by the tests as ``python recompute_memory.py FRAMEWORK``.
"""

import os
import sys
from contextlib import nullcontext
from typing import Any

import tensorstash as ts
from tensorstash.testing.labs import lab_of
from tensorstash.testing.layouts import floats

ROWS, WIDTH, LAYERS = 512, 1024, 16


def resident() -> int:
    """Return the bytes of this process that are in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(framework: str) -> None:
    """Print the bytes that a forward leaves resident, the same under the policy, and what the policy says."""
    ts.allocator.return_freed_memory()
    lab, stash = lab_of(framework), ts.stash(ts.Recompute(), framework=framework)
    weights = [lab.parameter(floats(WIDTH, WIDTH, seed=layer) / WIDTH**0.5) for layer in range(LAYERS)]
    x = lab.tensor(floats(ROWS, WIDTH))

    def forward(layers: int) -> Any:
        hidden = x
        for weight in weights[:layers]:
            hidden = lab.tanh(lab.matmul(hidden, weight))
            hidden = lab.mul(hidden, hidden)
        return lab.sum(hidden)

    def recomputed_bytes() -> int:
        return sum(done.bytes_in for done in stash.stats().recomputed.values())

    found = []
    for around in (nullcontext(), stash):
        for _ in range(2):  # all is imported, and proved
            with around:
                loss = forward(3)
            lab.backward(loss)
            del loss
        seen, before = recomputed_bytes(), resident()
        with around:
            loss = forward(LAYERS)
        found.append(resident() - before)
        logical = recomputed_bytes() - seen
        lab.backward(loss)
        del loss
    print(*found, logical)


if __name__ == "__main__":
    main(*sys.argv[1:])
