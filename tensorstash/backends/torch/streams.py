"""Streams, copies beside the computation and page-locked memory of PyTorch on CUDA, as the engine asks for them.

Only how things are done; in which order is the engine's affair. All calls go through one ``cuda`` module, so that what
is asked of a device can be tested without one.
"""

import errno
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch._C import DisableTorchFunction, _DisableTorchDispatch

from tensorstash.abilities import Event
from tensorstash.backends.torch.layout import Unrecorded, payload
from tensorstash.errors import graph_is_captured
from tensorstash.host.arrays import Array
from tensorstash.protocols import Undo
from tensorstash.spec import TensorSpec

_PORTABLE = 1
"""Page-locked for all devices of the process, not for the current one alone."""


class CudaStream:
    """A CUDA stream; equal to other objects for the same queue."""

    __slots__ = ("_cuda", "raw")

    def __init__(self, raw: Any, cuda: Any) -> None:
        self.raw = raw
        self._cuda = cuda

    def record(self) -> Event:
        """Return the point after all work that was submitted so far."""
        # A thread that waits for it sleeps, instead of taking a core from the program.
        event: Event = self._cuda.Event(blocking=True)
        self.raw.record_event(event)
        return event

    def wait(self, event: Any, /) -> None:
        """Let what is submitted from now on begin only after ``event``."""
        self.raw.wait_event(event)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CudaStream) and bool(self.raw == other.raw)

    def __hash__(self) -> int:
        return hash(self.raw)


class CudaStreams:
    """What PyTorch's CUDA devices can do beside the computation. Thread-safe, without state.

    Args:
        cuda: ``torch.cuda``.
    """

    def __init__(self, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda

    def current_stream(self, device: str) -> CudaStream | None:
        """Return the stream that this thread submits the device's work to, or None for anything but CUDA devices.

        Raises:
            BackendError: a CUDA graph is being captured.
        """
        place = torch.device(device)
        if place.type != "cuda":
            return None
        if self._cuda.is_current_stream_capturing():
            raise graph_is_captured(device)
        return CudaStream(self._cuda.current_stream(place), self._cuda)

    def new_stream(self, device: str) -> CudaStream:
        """Return a stream of its own for copies of that device."""
        return CudaStream(self._cuda.Stream(device=torch.device(device)), self._cuda)

    def empty(self, spec: TensorSpec) -> Tensor:
        """Return an uninitialised, contiguous tensor for work of the device's current stream."""
        with DisableTorchFunction(), _DisableTorchDispatch(), Unrecorded():
            # By way of bytes: PyTorch warns of every tensor that is made as complex32.
            raw = torch.empty(spec.nbytes, dtype=torch.uint8, device=spec.device)
            return raw.view(getattr(torch, spec.dtype)).view(spec.shape)

    def copy_out(self, source: Tensor, target: Array, stream: CudaStream) -> None:
        """Submit a copy of a contiguous tensor into host memory."""
        self._copy(_bytes(source), payload(target, _BYTES), stream)

    def copy_in(self, source: Array, target: Tensor, stream: CudaStream) -> None:
        """Submit a copy of host memory into a contiguous tensor."""
        self._copy(payload(source, _BYTES), _bytes(target), stream)

    def use_in(self, tensor: Tensor, stream: CudaStream) -> None:
        """Tell the allocator of a stream that uses the memory; nothing happens for the stream that it belongs to."""
        tensor.record_stream(stream.raw)

    def lock_pages(self, memory: Array) -> Undo:
        """Page-lock host memory in place, since PyTorch's own allocator rounds up to powers of two.

        Raises:
            OSError: the system or the device refuses.
        """
        runtime = self._cuda.cudart()
        address = memory.ctypes.data
        refused = runtime.cudaHostRegister(address, memory.nbytes, _PORTABLE)
        if int(refused):
            self._forget_error()
            raise OSError(errno.ENOMEM, f"cudaHostRegister: {runtime.cudaGetErrorString(refused)}")

        def unlock() -> None:  # must not keep the memory: it is called when that goes
            runtime.cudaHostUnregister(address)

        return unlock

    def _forget_error(self) -> None:
        """Take the error of a refused call back: the next kernel launch of this thread would raise it (vllm#50070).

        PyTorch does not expose ``cudaGetLastError``; a launch that raises has called it.
        """
        with suppress(RuntimeError):
            torch.zeros(1, device=f"cuda:{self._cuda.current_device()}")

    def _copy(self, source: Tensor, target: Tensor, stream: CudaStream) -> None:
        with DisableTorchFunction(), _DisableTorchDispatch(), Unrecorded(), self._cuda.stream(stream.raw):
            target.copy_(source, non_blocking=True)


_BYTES = TensorSpec((-1,), (1,), 0, "uint8", "cpu")


def _bytes(tensor: Tensor) -> Tensor:
    with DisableTorchFunction(), _DisableTorchDispatch():
        return tensor.detach().reshape(-1).view(torch.uint8)
