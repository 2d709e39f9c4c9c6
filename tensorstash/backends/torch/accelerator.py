"""The abilities of the accelerator of a process, found out once by asking PyTorch for it.

PyTorch has one accelerator in a process, of whatever maker. Abilities that all may have (streams, events, page-locked
memory) is asked of its device module, and of PyTorch's generic classes where that has none; those that only some have
(registering memory in place, events that let a waiting thread sleep, captured graphs) is used where it is found.
"""

import errno
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from tensorstash.host.arrays import Array
from tensorstash.host.pinned import registered_pages
from tensorstash.protocols import Undo

_PORTABLE = 1
"""Page-locked for all devices of the process, not for the current one alone."""

_OWN = ("Event", "Stream", "current_stream", "stream")
"""Classes of a device module's own, where PyTorch's generic ones, which are made without a frame of Python, fail."""


@dataclass(frozen=True)
class Accelerator:
    """A type of device whose copies can run beside the computation.

    Args:
        kind: the type's name.
        current_stream: returns the stream that this thread submits a device's work to.
        new_stream: returns a stream of a device.
        record: returns the event after all work of a stream; a thread that waits for it sleeps where that can be had.
        inside: returns a context manager that submits to a stream; None where that is the stream itself.
        is_capturing: whether work is being recorded, to be replayed later.
        locked_pages: returns so many bytes of page-locked host memory; raises OSError where it is refused.
    """

    kind: str
    current_stream: Callable[[torch.device], Any]
    new_stream: Callable[[torch.device], Any]
    record: Callable[[Any], Any]
    inside: Callable[[Any], AbstractContextManager[Any]] | None
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
    here = torch.device(kind, index)
    classes: list[tuple[Any, ...]] = [(_generic_stream, torch.Stream, torch.Event, None)]
    if all(hasattr(module, name) for name in _OWN):
        classes.append((module.current_stream, module.Stream, module.Event, module.stream))
    for current, stream, event, block in classes:
        new_stream, record, inside = partial(_on_device, stream), _recorder(event), block
        try:
            record(new_stream(here))
            current(here)
            break
        except (RuntimeError, ValueError) as refusal:  # which is how PyTorch says that a device has none
            lacking = f"it has no streams ({_first_line(refusal)})"
    else:
        return lacking
    locked_pages = _pinned_pages
    if hasattr(module, "cudart"):
        locked_pages = partial(registered_pages, partial(_register, module))
    else:
        try:
            locked_pages(1)
        except OSError as refusal:
            return f"it has no page-locked memory ({refusal.strerror})"
    is_capturing = getattr(module, "is_current_stream_capturing", _captures_nothing)
    return Accelerator(kind, current, new_stream, record, inside, is_capturing, locked_pages)


def _captures_nothing() -> bool:
    return False


def _on_device(stream: Callable[..., Any], device: torch.device) -> Any:
    return stream(device=device)


def _generic_stream(device: torch.device) -> Any:
    # The function behind torch.accelerator.current_stream, since PyTorch 2.6, without its frames: every copy asks.
    return torch._C._accelerator_getStream(device.index)


def _recorder(event: Any) -> Callable[[Any], Any]:
    if event is torch.Event:
        return _record

    blocking = {"blocking": True} if "blocking" in inspect.signature(event).parameters else {}

    def record(stream: Any) -> Any:
        made = event(**blocking)
        stream.record_event(made)
        return made

    return record


def _record(stream: Any) -> torch.Event:
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
