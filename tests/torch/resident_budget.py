"""Train a little under a budget, and print how much memory settled steps take.

    python resident_budget.py BYTES

Prints, as JSON, the peak of resident memory above what was there before the first step, of the steps after plans were
tried; the bytes that were held at most; and whether SciPy was imported, which takes 40 MiB by itself.
"""

import json
import sys
from pathlib import Path

import torch

import tensorstash as ts
from tensorstash.host.allocator import release_free

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.harness import meter

LAYERS, ROWS, WIDTH, STEPS, SETTLED = 40, 2048, 256, 10, 7


def main() -> None:
    weights = [torch.ones(WIDTH, requires_grad=True) for _ in range(LAYERS)]
    inputs = torch.randn(ROWS, WIDTH)

    def trained(rows: int) -> None:
        hidden = inputs[:rows]
        with stash:
            for weight in weights:
                hidden = (hidden * weight).tanh()
            loss = hidden.square().mean()
        del hidden
        loss.backward()

    stash = ts.stash(ts.Budget("1GiB"))
    trained(256)
    stash = ts.stash(ts.Budget(int(sys.argv[1])))
    release_free()
    meter.reset_peak()
    floor, peak = meter.peak_bytes(), 0
    for step in range(STEPS):
        meter.reset_peak()
        trained(ROWS)
        if step >= SETTLED:
            peak = max(peak, meter.peak_bytes())
    print(json.dumps({"resident": peak - floor, "held": stash.stats().peak_held, "scipy": "scipy" in sys.modules}))


if __name__ == "__main__":
    main()
