"""Streams, copies beside the computation and page-locked memory of PyTorch's accelerators, as the engine asks for them.

Only how things are done; in which order is the engine's affair.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch._C import DisableTorchFunction, _DisableTorchDispatch

from tensorstash.abilities import Event
from tensorstash.backends.torch.accelerator import Accelerator, found_accelerator, recorded
from tensorstash.errors import BackendError, graph_is_captured
from tensorstash.host.arrays import Array, adopted
from tensorstash.host.pinned import PinnedMemory, lockable_bytes
from tensorstash.spec import TensorSpec


class DeviceStream:
    """A stream of a device; equal to other objects for the same queue."""

    __slots__ = ("raw",)

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def record(self) -> Event:
        event: Event = recorded(self.raw)
        return event

    def wait(self, event: Any, /) -> None:
        self.raw.wait_event(event)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceStream) and bool(self.raw == other.raw)

    def __hash__(self) -> int:
        return hash(self.raw)


class DeviceStreams:
    """The streams of PyTorch's devices. Thread-safe.

    Args:
        find: returns the accelerator of the process, or why there is none to copy beside; asked once, when the first
            tensor of a device comes.
    """

    def __init__(self, find: Callable[[], Accelerator | str] = found_accelerator) -> None:
        self._find = find
        self._known: dict[str, tuple[Accelerator | str, torch.device]] = {}
        self._sides: dict[tuple[str, str], DeviceStream] = {}

    @cached_property
    def pinned(self) -> PinnedMemory:
        return PinnedMemory(self.locked_pages, lockable_bytes())

    def current_stream(self, device: str, /) -> DeviceStream | None:
        known = self._known.get(device)
        if known is None:
            known = self._known[device] = self._accelerator(device), torch.device(device)
        accelerator, place = known
        if isinstance(accelerator, str):
            return None
        if accelerator.is_capturing():
            raise graph_is_captured(device)
        # The function behind torch.accelerator.current_stream, without its frames: every copy asks.
        return DeviceStream(torch._C._accelerator_getStream(place.index))

    def why_copies_wait(self, device: str, /) -> str | None:
        accelerator = self._accelerator(device)
        return accelerator if isinstance(accelerator, str) else None

    def side_stream(self, device: str, direction: str, /) -> DeviceStream:
        """Return the stream of the process for copies of that device in a direction.

        PyTorch has 32 in all, and hands them out again: more than one pair would share with collectives.
        """
        side = self._sides.get((device, direction))
        if side is None:  # of two threads the later one takes that of the other
            accelerator = self._accelerator(device)
            assert not isinstance(accelerator, str), f"{device}: {accelerator}"
            made = DeviceStream(torch.Stream(device=torch.device(device)))
            side = self._sides.setdefault((device, direction), made)
        return side

    def on_device(self, device: str, /) -> AbstractContextManager[Any]:
        return torch.accelerator.device_index(torch.device(device).index or 0)

    def empty(self, spec: TensorSpec, /) -> Tensor:
        with DisableTorchFunction(), _DisableTorchDispatch():
            # By way of bytes: PyTorch warns of every tensor that is made as complex32.
            raw = torch.empty(spec.nbytes, dtype=torch.uint8, device=spec.device)
            return raw.view(getattr(torch, spec.dtype)).view(spec.shape)

    def copy_out(self, source: Tensor, target: Array, stream: DeviceStream, /) -> None:
        self._copy(source, target, stream, is_out=True)

    def copy_in(self, source: Array, target: Tensor, stream: DeviceStream, /) -> None:
        self._copy(target, source, stream, is_out=False)

    def use_in(self, tensor: Tensor, stream: DeviceStream, /) -> None:
        """Tell the allocator of a stream that uses the memory; nothing happens for the stream that it belongs to."""
        with DisableTorchFunction(), _DisableTorchDispatch():
            # PyTorch would resolve a lazy flag first, and tell of the copy that it makes for that.
            plain = tensor.conj() if tensor.is_conj() else tensor
            plain = torch._neg_view(plain) if plain.is_neg() else plain
            plain.record_stream(stream.raw)

    def locked_pages(self, nbytes: int, /) -> Array:
        accelerator = self._found
        assert not isinstance(accelerator, str), accelerator
        return accelerator.locked_pages(nbytes)

    def _accelerator(self, device: str) -> Accelerator | str:
        kind = device.partition(":")[0]
        if kind == "cpu":
            return "it is the host"
        if isinstance(self._found, Accelerator) and self._found.kind != kind:
            return f"PyTorch's accelerator in this process is {self._found.kind}"
        return self._found

    @cached_property
    def _found(self) -> Accelerator | str:
        return self._find()

    def _copy(self, tensor: Tensor, array: Array, stream: DeviceStream, *, is_out: bool) -> None:
        with DisableTorchFunction(), _DisableTorchDispatch():  # nothing here requires a gradient
            there = tensor.detach().reshape(-1).view(torch.uint8)
            # PyTorch warns of arrays that it could write to.
            here = torch.from_numpy(array if array.flags.writeable else adopted(array))
            source, target = (there, here) if is_out else (here, there)
            with stream.raw:
                target.copy_(source, non_blocking=True)


def free_bytes(device: str) -> int:
    """Return how many bytes tensors may still take on a device, those among them that PyTorch holds for it.

    Raises:
        BackendError: PyTorch does not tell that of this kind of device.
    """
    kind: Any = getattr(torch, device.partition(":")[0], None)
    if not all(hasattr(kind, name) for name in ("mem_get_info", "memory_allocated", "memory_reserved")):
        raise BackendError(
            f"budget: PyTorch does not tell how much memory of {device} is in use; say how much saved tensors may take "
            f"instead, such as budget='6GiB'"
        )
    cached = int(kind.memory_reserved(device)) - int(kind.memory_allocated(device))
    return int(kind.mem_get_info(device)[0]) + cached
