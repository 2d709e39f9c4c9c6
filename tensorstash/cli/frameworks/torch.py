"""PyTorch for the command line."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.checkpoint import checkpoint


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


class Job:
    """A small transformer that learns random numbers.

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
        self._network = nn.Sequential(*blocks).to(self.device or "cpu")
        self._optimizer = torch.optim.SGD(self._network.parameters(), lr=1e-3)
        self._inputs = torch.randn(sizes["batch"], sizes["length"], width).to(self.device or "cpu")

    def forward(self, step: int, *, small: bool = False) -> Any:
        """Return the loss with its graph; every step has the same inputs."""
        x = self._inputs[:1, :8] if small else self._inputs
        for block in self._network:
            x = checkpoint(block, x, use_reentrant=False) if self._is_checkpointed else block(x)
        return x.square().mean()

    def backward(self, loss: Any) -> float:
        """Compute the gradients, and return the loss as a number."""
        loss.backward()
        return float(loss.item())

    def update(self) -> None:
        """Step the optimizer; the memory of the gradients stays."""
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=False)

    def gradients(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the gradient of each parameter, by name."""
        for name, parameter in self._network.named_parameters():
            if parameter.grad is not None:
                yield name, parameter.grad.cpu().numpy()

    def peak(self) -> Callable[[], int] | None:
        """Return what gives the peak of the accelerator's bytes from now on; None where memory is the host's."""
        if self.device is None or self.device.type != "cuda":
            return None
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.max_memory_allocated
