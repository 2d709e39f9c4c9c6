"""Streams, copies beside the computation and page-locked memory of PyTorch's accelerator, as the engine asks for them.

PyTorch has one accelerator in a process, of whatever maker, and classes of streams and events that serve all of them.
The rest (registering memory in place, captured graphs) is used where the device's module has it.
"""

import errno
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import DisableTorchFunction, _DisableTorchDispatch

from tensorstash.errors import BackendError, graph_is_captured
from tensorstash.host.arrays import Array, adopted
from tensorstash.host.pinned import PinnedMemory, lockable_bytes, registered_pages
from tensorstash.protocols import Undo
from tensorstash.spec import TensorSpec

_PORTABLE = 1  # page-locked for all devices of the process, not for the current one alone


class Accelerator(NamedTuple):
    """A type of device whose copies can run beside the computation."""

    kind: str
    is_capturing: Callable[[], bool]
    """Whether work is being recorded, to be replayed later."""
    locked_pages: Callable[[int], Array]
    """Returns so many bytes of page-locked host memory; raises OSError where it is refused."""


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
    """Return the abilities of devices of a type with a module such as ``torch.cuda``, or the missing ones.

    Only the device of that index is tried: others may belong to other processes, which would pay for a context.
    """
    try:
        recorded(torch.Stream(device=torch.device(kind, index)))
    except (RuntimeError, ValueError) as refusal:  # which is how PyTorch says that a device has none
        return f"it has no streams ({_first_line(refusal)})"
    is_capturing = getattr(module, "is_current_stream_capturing", bool)
    if hasattr(module, "cudart"):
        return Accelerator(kind, is_capturing, partial(registered_pages, partial(_register, module)))
    try:
        _pinned_pages(1)
    except OSError as refusal:
        return f"it has no page-locked memory ({refusal.strerror})"
    return Accelerator(kind, is_capturing, _pinned_pages)


def _pinned_pages(nbytes: int) -> Array:
    """Return memory of PyTorch's own, which rounds up to powers of two, where pages cannot be locked in place."""
    try:
        array: Array = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True).numpy()
    except RuntimeError as refusal:
        raise OSError(errno.ENOMEM, _first_line(refusal)) from refusal
    return array


def _register(module: Any, memory: Array) -> Undo:
    runtime, address = module.cudart(), memory.ctypes.data
    refused = runtime.cudaHostRegister(address, memory.nbytes, _PORTABLE)
    if int(refused):
        # The next kernel launch of this thread would raise the error (vllm#50070), and takes it back. PyTorch does not
        # expose cudaGetLastError.
        with suppress(RuntimeError):
            torch.zeros(1, device=f"cuda:{module.current_device()}")
        raise OSError(errno.ENOMEM, f"cudaHostRegister: {runtime.cudaGetErrorString(refused)}")

    def unlock() -> None:  # must not keep the memory: it is called when that goes
        runtime.cudaHostUnregister(address)

    return unlock


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def recorded(stream: torch.Stream) -> torch.Event:
    """Return the event after all work of a stream; a thread that waits for it sleeps where that can be had."""
    event = torch.Event(stream.device, blocking=True)
    event.record(stream)
    return event


class DeviceStreams:
    """The streams of PyTorch's devices. Thread-safe.

    ``find`` is asked once, when the first tensor of a device comes.
    """

    def __init__(self, find: Callable[[], Accelerator | str] = found_accelerator) -> None:
        self._found = cache(find)
        self._known: dict[str, tuple[Accelerator | str, torch.device]] = {}
        self._sides: dict[tuple[str, str], torch.Stream] = {}

    @cached_property
    def pinned(self) -> PinnedMemory:
        return PinnedMemory(self.locked_pages, lockable_bytes())

    def _of(self, device: str) -> tuple[Accelerator | str, torch.device]:
        known = self._known.get(device)
        if known is None:
            place = torch.device(device)
            found: Accelerator | str = "it is the host" if place.type == "cpu" else self._found()
            if isinstance(found, Accelerator) and found.kind != place.type:
                found = f"PyTorch's accelerator in this process is {found.kind}"
            known = self._known[device] = found, place
        return known

    def current_stream(self, device: str, /) -> torch.Stream | None:
        accelerator, place = self._known.get(device) or self._of(device)
        if isinstance(accelerator, str):
            return None
        if accelerator.is_capturing():
            raise graph_is_captured(device)
        # The function behind torch.accelerator.current_stream, without its frames: every copy asks.
        stream: torch.Stream = torch._C._accelerator_getStream(place.index)
        return stream

    recorded = staticmethod(recorded)

    def why_copies_wait(self, device: str, /) -> str | None:
        accelerator, _ = self._of(device)
        return accelerator if isinstance(accelerator, str) else None

    def side_stream(self, device: str, direction: str, /) -> torch.Stream:
        """Return one stream for all sessions: PyTorch has 32, and hands them out again, to collectives, too."""
        side = self._sides.get((device, direction))
        if side is None:  # of two threads the later one takes that of the other
            assert (why := self.why_copies_wait(device)) is None, f"{device}: {why}"
            side = self._sides.setdefault((device, direction), torch.Stream(device=torch.device(device)))
        return side

    def on_device(self, device: str, /) -> AbstractContextManager[Any]:
        return torch.accelerator.device_index(torch.device(device).index or 0)

    def empty(self, spec: TensorSpec, /) -> Tensor:
        with DisableTorchFunction(), _DisableTorchDispatch():
            # By way of bytes: PyTorch warns of every tensor that is made as complex32.
            raw = torch.empty(spec.nbytes, dtype=torch.uint8, device=spec.device)
            return raw.view(getattr(torch, spec.dtype)).view(spec.shape)

    def copy_out(self, sources: Sequence[Tensor], targets: Sequence[Array], stream: torch.Stream, /) -> None:
        with DisableTorchFunction(), _DisableTorchDispatch(), stream:  # nothing here requires a gradient
            for source, target in zip(sources, targets, strict=True):
                there = source.detach().reshape(-1).view(torch.uint8)
                torch.from_numpy(target).copy_(there, non_blocking=True)

    def copy_in(self, sources: Sequence[Array], targets: Sequence[Tensor], stream: torch.Stream, /) -> None:
        with DisableTorchFunction(), _DisableTorchDispatch(), stream:
            for source, target in zip(sources, targets, strict=True):
                # PyTorch warns of arrays that it could write to.
                here = torch.from_numpy(source if source.flags.writeable else adopted(source))
                target.reshape(-1).view(torch.uint8).copy_(here, non_blocking=True)

    def use_in(self, tensors: Sequence[Tensor], stream: torch.Stream, /) -> None:
        """Tell the allocator of a stream that uses the memory; nothing happens for the stream that it belongs to."""
        with DisableTorchFunction(), _DisableTorchDispatch():
            for tensor in tensors:
                # PyTorch would resolve a lazy flag first, and tell of the copy that it makes for that.
                plain = tensor.conj() if tensor.is_conj() else tensor
                plain = torch._neg_view(plain) if plain.is_neg() else plain
                plain.record_stream(stream)

    def locked_pages(self, nbytes: int, /) -> Array:
        accelerator = self._found()
        assert not isinstance(accelerator, str), accelerator
        return accelerator.locked_pages(nbytes)


def free_bytes(device: str) -> int:
    """Return how many bytes tensors may still take on a device, those among them that PyTorch holds for it."""
    kind: Any = getattr(torch, device.partition(":")[0], None)
    if not all(hasattr(kind, name) for name in ("mem_get_info", "memory_allocated", "memory_reserved")):
        raise BackendError(
            f"budget: PyTorch does not tell how much memory of {device} is in use; say how much saved tensors may take "
            f"instead, such as budget='6GiB'"
        )
    cached = int(kind.memory_reserved(device)) - int(kind.memory_allocated(device))
    return int(kind.mem_get_info(device)[0]) + cached
