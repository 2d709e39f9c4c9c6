"""Resident memory of a fresh process with and without Recompute.

Started by the tests as ``python recompute_memory.py FRAMEWORK``.
"""

import os
import sys
from contextlib import nullcontext
from typing import Any

import tensorstash as ts

ROWS, WIDTH, LAYERS = 512, 1024, 16


def resident() -> int:
    """Return the bytes of this process that are in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def of_torch() -> tuple[Any, Any]:
    """Return what runs a forward and returns its loss, and the stash."""
    import torch
    from torch.nn import functional as F  # noqa: N812

    torch.manual_seed(0)
    torch.set_num_threads(1)
    weights = [torch.randn(WIDTH, WIDTH, requires_grad=True) for _ in range(LAYERS)]
    x = torch.randn(ROWS, WIDTH)

    def forward(layers: int) -> Any:
        hidden = x
        for weight in weights[:layers]:
            up = hidden @ weight
            hidden = F.gelu(up) * 0.1
        return hidden.mean()

    return forward, ts.stash(ts.Recompute(), framework="torch")


def of_paddle() -> tuple[Any, Any]:
    """Return what runs a forward and returns its loss, and the stash."""
    import paddle
    from paddle.nn import functional as F  # noqa: N812

    paddle.seed(0)
    weights = [paddle.create_parameter([WIDTH, WIDTH], "float32") for _ in range(LAYERS)]
    x = paddle.randn([ROWS, WIDTH])

    def forward(layers: int) -> Any:
        hidden = x
        for weight in weights[:layers]:
            hidden = F.gelu(hidden @ weight)
        return hidden.mean()

    return forward, ts.stash(ts.Recompute(), framework="paddle")


def main(framework: str) -> None:
    """Print the bytes that a forward leaves resident, the same under the policy, and what the policy says."""
    ts.allocator.return_freed_memory()
    forward, stash = (of_torch if framework == "torch" else of_paddle)()
    found = []
    for around in (nullcontext(), stash):
        for _ in range(2):  # all is imported, and proved
            with around:
                loss = forward(3)
            loss.backward()
            del loss
        seen, before = made_again(stash), resident()
        with around:
            loss = forward(LAYERS)
        found.append(resident() - before)
        logical = made_again(stash) - seen
        loss.backward()
        del loss
    print(*found, logical)


def made_again(stash: Any) -> int:
    """Return the bytes of all tensors that were not stored so far."""
    return sum(done.bytes_in for done in stash.stats().recomputed.values())


if __name__ == "__main__":
    main(*sys.argv[1:])
