"""PyTorch for the command line."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tensorstash.backends.torch.streams import DeviceStreams
from tensorstash.engine.link import PROBE_BYTES, bytes_per_s
from tensorstash.host.pinned import lockable_bytes
from tensorstash.sizes import format_bytes


def accelerators() -> list[str]:
    """Return the accelerators that PyTorch sees, with the version of their driver, and the link of the current one."""
    if not torch.accelerator.is_available():
        return []
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    found = [f"{kind.type}:{number}" for number in range(torch.accelerator.device_count())]
    current, streams = found[torch.accelerator.current_device_index()], DeviceStreams()
    if kind.type == "cuda":
        built = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
        found = [f"{torch.cuda.get_device_name(number)} ({built})" for number in range(len(found))]
    if streams.why_copies_wait(current) is None:
        rate = format_bytes(int(bytes_per_s(streams, current, PROBE_BYTES)))
        found.append(
            f"{rate}/s to the host, of whose memory this process locks at most {format_bytes(lockable_bytes())}"
        )
    return found


def peak_of_device() -> int:
    """Return the peak of bytes that the CUDA allocator has handed out; 0 without a device."""
    return int(torch.cuda.max_memory_allocated()) if torch.cuda.is_available() else 0


def watch(before: Callable[[Iterator[bytes]], object], after: Callable[[], None]) -> None:
    """Have functions called around each step of every optimizer; the first gets the bytes of its gradients."""

    def begin(optimizer: Any, *_: object) -> None:
        before(_gradients(optimizer))

    register_optimizer_step_pre_hook(begin)
    register_optimizer_step_post_hook(lambda *_: after())


def _gradients(optimizer: Any) -> Iterator[bytes]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is not None:
                gradient = gradient.to_local() if hasattr(gradient, "to_local") else gradient
                dense = gradient.to_dense() if gradient.layout != torch.strided else gradient
                yield dense.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
