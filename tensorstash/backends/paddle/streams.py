"""Streams, copies beside the computation and page-locked memory of Paddle's devices, as the engine asks for them.

Streams and events are those that Paddle has for every kind of device. Copies are not: its own go to the current stream,
which belongs to the device and not to the thread, so that a ``stream_guard`` here would move the work of the program's
other threads, since Paddle lets them run meanwhile; and they allocate what they write to. So copies go to the runtime
of the device itself, with the handle of the stream: to that of CUDA, the only one that is known here.

Never run on a GPU build: written from Paddle's source, and proved on a custom device that the tests simulate, whose
streams are Paddle's own.
"""

import ctypes
import errno
from typing import Any

import paddle
from paddle import Tensor

from tensorstash.abilities import Event
from tensorstash.backends.paddle.layout import uninitialised
from tensorstash.errors import graph_is_captured
from tensorstash.host.arrays import Array
from tensorstash.host.pinned import registered_pages
from tensorstash.protocols import Undo
from tensorstash.spec import TensorSpec

_TO_HOST, _TO_DEVICE = 2, 1
_PORTABLE = 1
_LIBRARIES = ("libcudart.so.12", "libcudart.so.13", "libcudart.so.11.0", "libcudart.so")


class GpuStream:
    """A stream of one of Paddle's devices; equal to other objects for the same queue.

    Args:
        raw: Paddle's.
        name: of the device.
        device: ``paddle.device``.
    """

    __slots__ = ("_device", "handle", "name", "raw")

    def __init__(self, raw: Any, name: str, device: Any) -> None:
        self.raw = raw
        self.name = name
        self._device = device
        self.handle = int(raw.stream_base.raw_stream)

    def record(self) -> Event:
        """Return the point after all work that was submitted so far."""
        # An event belongs to what is the current device when it is made. A thread that waits for it sleeps, instead of
        # taking a core from the program.
        with self._device.device_guard(self.name):
            event: Event = self._device.Event(blocking=True)
        self.raw.record_event(event)
        return event

    def wait(self, event: Any, /) -> None:
        """Let what is submitted from now on begin only after ``event``."""
        self.raw.wait_event(event)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GpuStream) and (self.handle, self.name) == (other.handle, other.name)

    def __hash__(self) -> int:
        return hash(self.handle)


class GpuStreams:
    """What Paddle's devices can do beside the computation. Thread-safe, without state.

    Args:
        device: ``paddle.device``.
        runtime: the CUDA runtime library that Paddle uses, or why there is none.
        kind: of the devices that the runtime copies to and from.
    """

    def __init__(self, device: Any, runtime: Any, kind: str = "gpu") -> None:
        self._device = device
        self._runtime = runtime
        self._kind = kind

    def current_stream(self, device: str, /) -> GpuStream | None:
        """Return the stream that the device's work is submitted to, or None if copies make the program wait.

        Raises:
            BackendError: a CUDA graph is being captured.
        """
        if self.why_copies_wait(device) is not None:
            return None
        is_capturing = getattr(paddle.base.core, "is_cuda_graph_capturing", None)
        if is_capturing is not None and is_capturing():
            raise graph_is_captured(device)
        return GpuStream(self._device.current_stream(device), device, self._device)

    def why_copies_wait(self, device: str, /) -> str | None:
        """Say why copies of a device make the program wait; None if they do not."""
        kind = device.partition(":")[0]
        if kind == "cpu":
            return "it is the host"
        if kind != self._kind:
            # Streams and events of others can be had; a copy in a stream of one's own cannot.
            return f"PaddlePaddle copies to and from {kind} only in the stream of the computation"
        return self._runtime if isinstance(self._runtime, str) else None

    def new_stream(self, device: str, /) -> GpuStream:
        """Return a stream of its own for copies of that device."""
        return GpuStream(self._device.Stream(device=device), device, self._device)

    def empty(self, spec: TensorSpec, /) -> Tensor:
        """Return an uninitialised, contiguous tensor for work of the device's current stream."""
        return uninitialised(spec.shape, spec)

    def copy_out(self, source: Tensor, target: Array, stream: GpuStream, /) -> None:
        """Submit a copy of a contiguous tensor into host memory."""
        self._copy(target.ctypes.data, source.data_ptr(), target.nbytes, _TO_HOST, stream)

    def copy_in(self, source: Array, target: Tensor, stream: GpuStream, /) -> None:
        """Submit a copy of host memory into a contiguous tensor."""
        self._copy(target.data_ptr(), source.ctypes.data, source.nbytes, _TO_DEVICE, stream)

    def use_in(self, tensor: Tensor, stream: GpuStream, /) -> None:
        """Tell the allocator that the current stream, which ``stream`` is, uses the memory."""
        tensor._record_stream()

    def locked_pages(self, nbytes: int, /) -> Array:
        """Return host memory that is page-locked in place.

        Raises:
            OSError: the system or the device refuses.
        """
        return registered_pages(self._register, nbytes)

    def _register(self, memory: Array) -> Undo:
        runtime, address = self._runtime, ctypes.c_void_p(memory.ctypes.data)
        refused = runtime.cudaHostRegister(address, ctypes.c_size_t(memory.nbytes), _PORTABLE)
        if refused:
            runtime.cudaGetLastError()  # or the next launch of this thread raises it
            raise OSError(errno.ENOMEM, f"cudaHostRegister: error {refused}")

        def unlock() -> None:  # must not keep the memory: it is called when that goes
            runtime.cudaHostUnregister(address)

        return unlock

    def _copy(self, target: int, source: int, nbytes: int, direction: int, stream: GpuStream) -> None:
        if not nbytes:
            return
        failed = self._runtime.cudaMemcpyAsync(
            ctypes.c_void_p(target),
            ctypes.c_void_p(source),
            ctypes.c_size_t(nbytes),
            direction,
            ctypes.c_void_p(stream.handle),
        )
        if failed:
            raise RuntimeError(f"cudaMemcpyAsync of {nbytes} bytes: error {failed}")


def cuda_runtime() -> Any:
    """Return the CUDA runtime library that this build of Paddle uses, or say why there is none."""
    if not paddle.device.is_compiled_with_cuda() or paddle.device.is_compiled_with_rocm():
        return "this build of PaddlePaddle is not one for CUDA"
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue  # of another version
    return "the CUDA runtime library is not found"
