"""PyTorch for the command line."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tensorstash.cli.bench_worker import Training


def accelerators() -> list[str]:
    """Return the accelerators that PyTorch sees, with the version of what drives them."""
    if not torch.accelerator.is_available():
        return []
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    count = torch.accelerator.device_count()
    if kind.type == "cuda":
        built = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
        return [f"{torch.cuda.get_device_name(number)} ({built})" for number in range(count)]
    return [f"{kind.type}:{number}" for number in range(count)]


class Job(Training):
    """A small transformer that learns random numbers, the same in every step.

    Args:
        sizes: ``batch``, ``length``, ``width``, ``heads`` and ``depth``.
        is_checkpointed: whether the activations of each block are computed again in backward.
    """

    def __init__(self, sizes: Mapping[str, int], is_checkpointed: bool = False) -> None:
        torch.manual_seed(0)
        self._is_checkpointed = is_checkpointed
        self.device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        width = sizes["width"]
        blocks = [
            nn.TransformerEncoderLayer(width, sizes["heads"], 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(sizes["depth"])
        ]
        network = nn.Sequential(*blocks).to(self.device or "cpu")
        super().__init__(network, torch.optim.SGD(network.parameters(), lr=1e-3))
        self._inputs = torch.randn(sizes["batch"], sizes["length"], width).to(self.device or "cpu")

    def forward(self, step: int, *, small: bool = False) -> Any:
        x = self._inputs[:1, :8] if small else self._inputs
        for block in self._network:
            x = checkpoint(block, x, use_reentrant=False) if self._is_checkpointed else block(x)
        return x.square().mean()

    def update(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=False)

    def peak(self) -> Callable[[], int] | None:
        if self.device is None or self.device.type != "cuda":
            return None
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.max_memory_allocated
