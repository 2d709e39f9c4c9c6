"""The abilities of the accelerator of a process, found out once by asking PyTorch for it.

PyTorch has one accelerator in a process, of whatever maker, and classes of streams and events that serve all of them.
The rest (registering memory in place, captured graphs) is used where the device's module has it.
"""

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from tensorstash.host.arrays import Array
from tensorstash.host.pinned import registered_pages
from tensorstash.protocols import Undo

_PORTABLE = 1
"""Page-locked for all devices of the process, not for the current one alone."""


@dataclass(frozen=True)
class Accelerator:
    """A type of device whose copies can run beside the computation.

    Args:
        kind: the type's name.
        is_capturing: whether work is being recorded, to be replayed later.
        locked_pages: returns so many bytes of page-locked host memory; raises OSError where it is refused.
    """

    kind: str
    is_capturing: Callable[[], bool]
    locked_pages: Callable[[int], Array]


def found_accelerator() -> Accelerator | str:
    """Return the accelerator of this process, or say why copies of its devices make the program wait."""
    device = torch.accelerator.current_accelerator()
    if device is None:
        return "PyTorch knows no accelerator in this process"
    key = torch._C._dispatch_key_for_device(device.type)
    if not torch._C._dispatch_has_kernel_for_dispatch_key("aten::record_stream", key):
        return "its memory cannot be told of the streams that use it"
    return asked(device.type, getattr(torch, device.type, None), torch.accelerator.current_device_index())


def asked(kind: str, module: Any, index: int = 0) -> Accelerator | str:
    """Return the abilities of devices of a type, or the missing ones.

    Args:
        kind: the type's name.
        module: the device module of it, such as ``torch.cuda``; None if it has none.
        index: of the device to try; others may belong to other processes, which would pay for a context.
    """
    try:
        recorded(torch.Stream(device=torch.device(kind, index)))
    except (RuntimeError, ValueError) as refusal:  # which is how PyTorch says that a device has none
        return f"it has no streams ({_first_line(refusal)})"
    locked_pages = _pinned_pages
    if hasattr(module, "cudart"):
        locked_pages = partial(registered_pages, partial(_register, module))
    else:
        try:
            locked_pages(1)
        except OSError as refusal:
            return f"it has no page-locked memory ({refusal.strerror})"
    is_capturing = getattr(module, "is_current_stream_capturing", _captures_nothing)
    return Accelerator(kind, is_capturing, locked_pages)


def _captures_nothing() -> bool:
    return False


def recorded(stream: torch.Stream) -> torch.Event:
    """Return the event after all work of a stream; a thread that waits for it sleeps where that can be had."""
    event = torch.Event(stream.device, blocking=True)
    event.record(stream)
    return event


def _pinned_pages(nbytes: int) -> Array:
    """Return memory of PyTorch's own, which rounds up to powers of two: where pages cannot be locked in place."""
    try:
        pages = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
    except RuntimeError as refusal:
        raise OSError(errno.ENOMEM, _first_line(refusal)) from refusal
    array: Array = pages.numpy()
    return array


def _register(module: Any, memory: Array) -> Undo:
    runtime = module.cudart()
    address = memory.ctypes.data
    refused = runtime.cudaHostRegister(address, memory.nbytes, _PORTABLE)
    if int(refused):
        _forget_error(module)
        raise OSError(errno.ENOMEM, f"cudaHostRegister: {runtime.cudaGetErrorString(refused)}")

    def unlock() -> None:  # must not keep the memory: it is called when that goes
        runtime.cudaHostUnregister(address)

    return unlock


def _forget_error(module: Any) -> None:
    """Take the error of a refused call back: the next kernel launch of this thread would raise it (vllm#50070).

    PyTorch does not expose ``cudaGetLastError``; a launch that raises has called it.
    """
    with suppress(RuntimeError):
        torch.zeros(1, device=f"cuda:{module.current_device()}")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
