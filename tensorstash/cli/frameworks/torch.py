"""PyTorch for the command line."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


def accelerators() -> list[str]:
    """Return the accelerators that PyTorch sees, with the version of their driver."""
    if not torch.accelerator.is_available():
        return []
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    count = torch.accelerator.device_count()
    if kind.type == "cuda":
        built = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
        return [f"{torch.cuda.get_device_name(number)} ({built})" for number in range(count)]
    return [f"{kind.type}:{number}" for number in range(count)]


def peak_of_device() -> int:
    """Return the peak of bytes that the CUDA allocator has handed out; 0 without a device."""
    return int(torch.cuda.max_memory_allocated()) if torch.cuda.is_available() else 0


def watch(before: Callable[[Iterator[bytes]], object], after: Callable[[], object]) -> None:
    """Have functions called around each step of every optimizer; the first gets the bytes of its gradients."""

    def begin(optimizer: Any, *_: object) -> None:
        before(_gradients(optimizer))

    def end(*_: object) -> None:
        after()

    register_optimizer_step_pre_hook(begin)
    register_optimizer_step_post_hook(end)


def _gradients(optimizer: Any) -> Iterator[bytes]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is not None:
                gradient = gradient.to_local() if hasattr(gradient, "to_local") else gradient
                dense = gradient.to_dense() if gradient.layout != torch.strided else gradient
                yield dense.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
