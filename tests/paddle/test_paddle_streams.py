"""The device path of Paddle on stand-ins of its streams and of the CUDA runtime, with tensors in host memory."""

import ctypes
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import numpy as np
import paddle
import pytest

import tensorstash.reference as ref
from tensorstash.backends.paddle.backend import PaddleBackend
from tensorstash.backends.paddle.layout import DeviceLayouts
from tensorstash.backends.paddle.streams import GpuStream, GpuStreams, cuda_runtime
from tensorstash.engine.session import Session
from tensorstash.errors import BackendError
from tensorstash.host.arrays import aligned_empty
from tensorstash.policies import Compress, StoreIn
from tensorstash.policies.limits import Limits
from tensorstash.reference.storage.streams import Shuffled, asynchronous
from tensorstash.stores.memory import Memory
from tensorstash.testing.labs.paddle import PaddleLab
from tensorstash.testing.layouts import LAYOUTS, assert_same_bits, floats

LAB = PaddleLab()


class Stream:
    """Stands in for ``paddle.device.Stream``, with a stream of a simulated accelerator for its queue."""

    made: ClassVar[list["Stream"]] = []

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.stream_base = self
        self.queue = ref.streams.Stream("sim:0", device)
        self.raw_stream = len(Stream.made)
        Stream.made.append(self)

    def record_event(self, event: "Event") -> None:
        event.raw = self.queue.record()

    def wait_event(self, event: "Event") -> None:
        self.queue.wait(event.raw)


class Compute(Stream):
    """The stream of the computation, which here is done at once: where it waits, the program waits."""

    def wait_event(self, event: "Event") -> None:
        event.synchronize()


class Event:
    """Stands in for ``paddle.device.Event``."""

    def __init__(self, blocking: bool) -> None:
        assert blocking
        self.raw: Any = None

    def query(self) -> bool:
        return self.raw.query()

    def synchronize(self) -> None:
        self.raw.synchronize()


class Device:
    """Stands in for ``paddle.device``."""

    Stream = Stream
    Event = Event

    def __init__(self) -> None:
        self.current = Compute()

    def current_stream(self, device: str) -> Stream:
        return self.current

    def device_guard(self, device: str) -> AbstractContextManager[None]:
        return nullcontext()


class Runtime:
    """Stands in for the CUDA runtime."""

    def __init__(self, refusal: int = 0) -> None:
        self.locked: list[int] = []
        self.copies: list[tuple[int, int]] = []
        self.refusal = refusal
        self.has_error = False

    def cudaMemcpyAsync(self, target: Any, source: Any, nbytes: Any, direction: int, stream: Any) -> int:  # noqa: N802
        self.copies.append((nbytes.value, direction))
        Stream.made[stream.value or 0].queue.submit(lambda: ctypes.memmove(target, source, nbytes.value) and None)
        return self.refusal

    def cudaHostRegister(self, address: Any, nbytes: Any, flags: int) -> int:  # noqa: N802
        self.has_error = bool(self.refusal)
        if not self.refusal:
            self.locked.append(address.value)
        return self.refusal

    def cudaHostUnregister(self, address: Any) -> int:  # noqa: N802
        self.locked.remove(address.value)
        return 0

    def cudaGetLastError(self) -> int:  # noqa: N802
        self.has_error = False
        return self.refusal


class HostStreams(GpuStreams):
    """Streams for tensors in host memory."""

    def current_stream(self, device: str, /) -> GpuStream | None:
        return super().current_stream("gpu:0")

    def use_in(self, tensor: Any, stream: Any, /) -> None:
        assert stream == self.current_stream("cpu")


def backend(runtime: Runtime) -> PaddleBackend:
    made = PaddleBackend()
    made.streams, made.layouts = HostStreams(Device(), runtime), DeviceLayouts()
    return made


def test_a_build_without_cuda_has_none() -> None:
    if paddle.is_compiled_with_cuda():
        pytest.skip("a build with CUDA")
    reason = cuda_runtime()
    assert reason == "this build of PaddlePaddle is not one for CUDA"
    assert PaddleBackend().streams.why_copies_wait("gpu:0") == reason
    assert PaddleBackend().streams.current_stream("gpu:0") is None
    assert PaddleBackend().layouts is None


def test_only_cuda_devices_have_streams() -> None:
    streams = GpuStreams(Device(), Runtime())
    assert streams.current_stream("cpu") is None
    assert streams.current_stream("sim:0") is None
    assert streams.why_copies_wait("gpu:0") is None
    first = streams.current_stream("gpu:0")
    assert first is not None
    assert first == streams.current_stream("gpu:0")
    assert first != streams.new_stream("gpu:0")


def test_a_graph_that_is_being_captured_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paddle.base.core, "is_cuda_graph_capturing", lambda: True, raising=False)
    with pytest.raises(BackendError, match=r"gpu:0 cannot be stashed.*CUDA graph"):
        GpuStreams(Device(), Runtime()).current_stream("gpu:0")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "complex64"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_dense_elements_and_the_layout_they_came_from(layout: str, dtype: str) -> None:
    layouts, plain = DeviceLayouts(), PaddleBackend()
    tensor = LAYOUTS[layout].of(LAB, dtype, "cpu")
    spec = plain.spec(tensor)
    dense = layouts.dense(tensor, spec)
    assert tuple(dense.shape) == spec.dense().shape
    back = layouts.restored(dense, spec, adopt=False)
    assert tuple(back.shape) == spec.shape
    if spec.numel:
        assert (tuple(back.strides), back._offset()) == (spec.strides, spec.offset)
    assert_same_bits(LAB.bits(back), LAB.bits(tensor), layout)


def test_refused_pages_and_copies_are_errors_that_leave_none_behind() -> None:
    runtime = Runtime(refusal=2)
    streams = GpuStreams(Device(), runtime)
    with pytest.raises(OSError, match="cudaHostRegister: error 2"):
        streams.locked_pages(4096)
    assert not runtime.has_error
    with pytest.raises(RuntimeError, match="cudaMemcpyAsync of 16 bytes: error 2"):
        streams.copy_out(paddle.ones([4]), aligned_empty(16), streams.new_stream("gpu:0"))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("policy", [StoreIn(Memory()), Compress(min_ratio=1)], ids=["memory", "compressed"])
def test_programs_train_the_same_in_any_order_of_copies(policy: Any, seed: int) -> None:
    def gradient(session: Session[Any] | None) -> Any:
        leaf = LAB.tensor(floats(6, 8), requires_grad=True)
        if session is None:
            loss = (paddle.transpose(leaf * 1.0, [1, 0]).tanh() * 2.0).exp().sum()
        else:
            with session.scope():
                loss = (paddle.transpose(leaf * 1.0, [1, 0]).tanh() * 2.0).exp().sum()
        loss.backward()
        return LAB.gradient(leaf)

    expected, runtime = gradient(None), Runtime()
    with asynchronous(Shuffled(seed)):
        limits = Limits(in_flight=[0, 200, 10**6][seed % 3], ahead=[10**6, 200][seed % 2])
        session = Session(policy, backend(runtime), min_bytes=0, limits=limits)
        for _ in range(2):
            assert np.array_equal(gradient(session), expected)
        session.drain()
        assert session.stats().live.tensors == 0
        assert {direction for _, direction in runtime.copies} <= {1, 2}
        assert runtime.copies
        del session
    assert not runtime.locked
