"""What is asked of a device, and with which tensors and memory: on a stand-in for CUDA, since it needs no device."""

from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from tensorstash.backends.torch.accelerator import asked
from tensorstash.backends.torch.backend import TorchBackend
from tensorstash.backends.torch.streams import DeviceStreams
from tensorstash.errors import BackendError
from tensorstash.host.arrays import aligned_empty, borrowed
from tensorstash.spec import TensorSpec, contiguous_strides


class Recorder:
    """Stands in for ``torch.cuda``: writes down what it is asked for, and does what it is told to."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.is_capturing = False
        self.refusal = 0
        self.current = self.Stream()

    class Event:
        def __init__(self, blocking: bool) -> None:
            self.blocking = blocking

    class Stream:
        def __init__(self, device: Any = None) -> None:
            self.device = device
            self.submitted: list[Any] = []

        def record_event(self, event: Any) -> None:
            self.submitted.append(("record", event))

        def wait_event(self, event: Any) -> None:
            self.submitted.append(("wait", event))

    def current_stream(self, device: torch.device) -> Any:
        self.calls.append(("current_stream", str(device)))
        return self.current

    def is_current_stream_capturing(self) -> bool:
        return self.is_capturing

    @contextmanager
    def stream(self, raw: Any) -> Any:
        self.calls.append(("enter", raw))
        yield
        self.calls.append(("leave", raw))

    def cudart(self) -> "Recorder":
        return self

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:  # noqa: N802
        self.calls.append(("register", address, nbytes, flags))
        return self.refusal

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        self.calls.append(("unregister", address))
        return 0

    def cudaGetErrorString(self, error: int) -> str:  # noqa: N802
        return f"error {error}"

    def current_device(self) -> int:
        self.calls.append("launch")
        raise RuntimeError("CUDA error: out of memory")


@pytest.fixture
def cuda() -> Recorder:
    return Recorder()


@pytest.fixture
def streams(cuda: Recorder) -> DeviceStreams:
    found = asked("cuda", cuda)
    cuda.calls.clear()
    return DeviceStreams(lambda: found)


def test_only_the_accelerator_of_the_process_has_streams(streams: DeviceStreams, cuda: Recorder) -> None:
    assert streams.current_stream("cpu") is None
    assert streams.current_stream("xpu:0") is None
    assert streams.why_copies_wait("xpu:0") == "PyTorch's accelerator in this process is cuda"
    assert streams.why_copies_wait("cuda:0") is None
    assert not cuda.calls
    assert TorchBackend().streams.current_stream("cpu") is None


def test_the_current_stream_of_the_tensors_device_is_asked_for_each_time(
    streams: DeviceStreams, cuda: Recorder
) -> None:
    first = streams.current_stream("cuda:1")
    assert first == streams.current_stream("cuda:1")
    assert hash(first) == hash(streams.current_stream("cuda:1"))
    cuda.current = Recorder.Stream()
    assert first != streams.current_stream("cuda:1")
    assert cuda.calls == [("current_stream", "cuda:1")] * 4


def test_a_graph_that_is_being_captured_is_refused(streams: DeviceStreams, cuda: Recorder) -> None:
    cuda.is_capturing = True
    with pytest.raises(BackendError, match=r"cuda:0 cannot be stashed.*CUDA graph.*Capture outside of the stash"):
        streams.current_stream("cuda:0")


def test_events_let_waiting_threads_sleep(streams: DeviceStreams) -> None:
    one, other = streams.new_stream("cuda:0"), streams.new_stream("cuda:0")
    event = one.record()
    other.wait(event)
    assert event.blocking
    assert one.raw.submitted == [("record", event)]
    assert other.raw.submitted == [("wait", event)]
    assert str(one.raw.device) == "cuda:0"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_copies_move_every_byte_inside_of_their_stream_alone(
    streams: DeviceStreams, cuda: Recorder, dtype: torch.dtype
) -> None:
    source = torch.randn(3, 5).to(dtype)
    stream = streams.new_stream("cuda:0")
    memory = aligned_empty(source.nbytes)
    streams.copy_out(source, memory, stream)
    target = torch.empty_like(source)
    streams.copy_in(borrowed(memory), target, stream)
    assert torch.equal(target, source)
    assert cuda.calls == [("enter", stream.raw), ("leave", stream.raw)] * 2


def test_copies_are_unseen_by_dispatch_modes(streams: DeviceStreams) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Refuse(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError(func)

    source, memory = torch.randn(4), aligned_empty(16)
    with Refuse():
        streams.copy_out(source, memory, streams.new_stream("cuda:0"))
    assert np.array_equal(memory.view(np.float32), source.numpy())


@pytest.mark.parametrize("shape", [(3, 4), (), (0, 5)])
def test_an_empty_tensor_is_what_the_spec_says(streams: DeviceStreams, shape: tuple[int, ...]) -> None:
    for name in ("float32", "bool", "complex32", "bfloat16"):
        tensor = streams.empty(TensorSpec(shape, contiguous_strides(shape), 0, name, "cpu"))
        assert (tuple(tensor.shape), tensor.dtype) == (shape, getattr(torch, name))
        assert tensor.is_contiguous()


def test_pages_are_locked_for_all_devices_and_unlocked_while_they_are_there(
    streams: DeviceStreams, cuda: Recorder
) -> None:
    memory = streams.locked_pages(8192)
    address = memory.ctypes.data
    del memory
    assert cuda.calls == [("register", address, 8192, 1), ("unregister", address)]


def test_a_refusal_says_why_and_leaves_no_error_behind(streams: DeviceStreams, cuda: Recorder) -> None:
    cuda.refusal = 2
    with pytest.raises(OSError, match="cudaHostRegister: error 2"):
        streams.locked_pages(4096)
    # A launch takes the error, which the next one would have raised otherwise.
    assert cuda.calls[-1] == "launch"
