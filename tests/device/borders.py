"""Hold the blocks that a budget computes again against every other number: ``python -m tests.device.borders``.

On the simulated device, whose operations and links take a time that is set. A link moves a fifth, a half, or twice of
what a step saves in the time of a step; a third of that may stay.
"""

from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import tensorstash as ts
from tensorstash.abilities.checkpoints import CHECKPOINTED
from tensorstash.engine.checkpoints import Border
from tests.device.models import Attention
from tests.device.simulated import Simulated, simulated

BLOCKS, STEPS, SETTLED = 9, 4, 4


def trained(net: nn.Module, batch: Tensor, steps: int) -> tuple[list[float], bytes]:
    """Return the seconds of each step and the bits of all gradients."""
    seconds = []
    for step in range(steps):
        torch.manual_seed(step)
        began = perf_counter()
        net(batch.clone().requires_grad_()).square().mean().backward()
        torch.accelerator.synchronize()
        seconds.append(perf_counter() - began)
    gradients = b"".join(bytes(each.grad.cpu().numpy().data) for each in net.parameters() if each.grad is not None)
    net.zero_grad()
    return seconds, gradients


def forced(number: int) -> Callable[..., None]:
    """Return a border that always stands behind so many blocks."""

    def step_ended(border: Border, *_: Any) -> None:
        for place, region in enumerate(border._regions.values()):
            region.planned(CHECKPOINTED if place < number else "offloaded")

    return step_ended


def main(device: Simulated) -> None:
    """Print a line for each link."""
    torch.manual_seed(0)
    net = nn.Sequential(*(Attention(64) for _ in range(BLOCKS))).to("sim")
    batch = torch.randn(4, 64, 64).to("sim")
    device.memory(bandwidth=4e8)
    with ts.wrap(net, "keep", min_bytes=0) as handle:
        plain, expected = trained(net, batch, STEPS)
        saved_bytes = handle.stats().seen.nbytes // STEPS
    budget = saved_bytes // 3
    print(f"{saved_bytes} bytes saved, {median(plain):.3f} s a step; {budget} bytes may stay")
    for share in (0.2, 0.5, 2.0):
        device.link(bandwidth=share * saved_bytes / median(plain))

        def run(number: int | None) -> tuple[float, str]:
            chosen = Border.step_ended if number is None else forced(number)
            wrap = partial(ts.wrap, net, "checkpoint | cpu_offload", budget=budget, min_bytes=0)
            with patch.object(Border, "step_ended", chosen), wrap() as handle:
                trained(net, batch, SETTLED)
                settled = handle.stats().blocks
                seconds, found = trained(net, batch, STEPS)
                stats = handle.stats()
            assert found == expected
            assert settled == stats.blocks, (settled, stats.blocks)
            counts = {treatment: len(names) for treatment, names in stats.blocks.items()}
            return median(seconds), f"{counts}, {stats.peak_held / budget:.2f} of the budget"

        all_s = [run(number)[0] for number in range(BLOCKS + 1)]
        own_s, told = run(None)
        best = min(all_s)
        print(
            f"link {share}: {own_s:.3f} s, {own_s / best:.3f} of the best, {all_s.index(best)} computed again;"
            f" all are computed again at {all_s[-1] / best:.3f}, none at {all_s[0] / best:.3f}; {told}"
        )


if __name__ == "__main__":
    main(simulated())
