"""What is made again is really gone: resident memory of a fresh process, which runs this file."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import tensorstash as ts
from tensorstash.testing.labs import lab_of
from tensorstash.testing.layouts import floats
from tests.processes import output_of

ROWS, WIDTH, LAYERS = 3072, 128, 16


def resident() -> int:
    """Return the bytes of this process that are in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(framework: str) -> None:
    """Print the bytes that a forward leaves resident, the same under the policy, and what the policy says."""
    ts.allocator.return_freed_memory()
    lab, stash = lab_of(framework), ts.stash(ts.Recompute(), framework=framework)
    weight = lab.parameter(floats(WIDTH, WIDTH) / WIDTH**0.5)
    x = lab.tensor(floats(ROWS, WIDTH))

    def forward(layers: int) -> Any:
        hidden = x
        for _ in range(layers):
            hidden = (hidden @ weight).tanh()
            hidden = hidden * hidden
        return hidden.sum()

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


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell what is resident")
@pytest.mark.parametrize("framework", ["torch", "paddle"])
def test_resident_memory_falls_by_what_is_made_again(framework: str) -> None:
    kept, recomputed, logical = map(int, output_of(Path(__file__), framework).split()[-3:])
    assert logical > 20 * 2**20
    assert kept - recomputed > 0.7 * logical


if __name__ == "__main__":
    main(*sys.argv[1:])
