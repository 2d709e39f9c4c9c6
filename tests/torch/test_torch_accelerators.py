"""Every type of device that PyTorch knows is stashed, or kept for a reason; what it can do is found out by asking."""

import re
from types import SimpleNamespace
from unittest.mock import Mock, call

import numpy as np
import pytest
import torch

from tensorstash.backends.torch import streams as torch_streams
from tensorstash.backends.torch.eligibility import dispatch_reason
from tensorstash.backends.torch.streams import Accelerator, DeviceStreams, asked, found_accelerator
from tensorstash.host.arrays import Array

WITHOUT_TENSORS = {"mkldnn", "opengl", "opencl", "ideep"}
"""Types that have a name and no key: no tensor can be made on them."""

REASONS = {
    "xla": "deferred computation",
    "lazy": "deferred computation",
    "vulkan": "opaque layout",
    "meta": "no real memory",
}


def kinds() -> list[str]:
    with pytest.raises(RuntimeError) as caught:
        torch.device("bogus")
    found = re.search(r"one of (.*) device type", str(caught.value))
    assert found is not None
    return found[1].split(", ")


@pytest.mark.parametrize("kind", sorted(set(kinds()) - WITHOUT_TENSORS))
def test_strided_tensors_of_every_type_of_device_are_stashed_or_kept_for_a_reason(kind: str) -> None:
    dispatch = torch._C
    key = dispatch._parse_dispatch_key(dispatch._dispatch_key_for_device(kind))
    keys = dispatch.DispatchKeySet(key) | dispatch.DispatchKeySet(dispatch.DispatchKey.ADInplaceOrView)
    assert dispatch_reason(keys.raw_repr()) == REASONS.get(kind)


@pytest.fixture
def queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every device have streams."""
    monkeypatch.setattr(torch, "Stream", lambda device: device)
    monkeypatch.setattr(torch_streams, "recorded", lambda stream: stream)


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let PyTorch have page-locked memory; return what was asked of it."""
    sizes: list[int] = []

    def pages(nbytes: int) -> Array:
        sizes.append(nbytes)
        return np.empty(nbytes, np.uint8)

    monkeypatch.setattr(torch_streams, "_pinned_pages", pages)
    return sizes


@pytest.mark.parametrize("kind", ["xpu", "npu", "mtia", "hpu", "mlu"])
@pytest.mark.usefixtures("queues")
def test_a_device_with_streams_and_page_locked_memory_of_pytorchs_own(kind: str, pinned: list[int]) -> None:
    found = asked("privateuseone" if kind in ("npu", "mlu") else kind, None)
    assert isinstance(found, Accelerator)
    assert not found.is_capturing()
    assert found.locked_pages(4096).nbytes == 4096
    assert pinned == [1, 4096]


@pytest.mark.parametrize("lacking", ["page-locked memory (pin_memory", "streams ("])
def test_a_device_that_lacks_something_has_copies_that_wait(lacking: str, request: pytest.FixtureRequest) -> None:
    if lacking != "streams (":
        request.getfixturevalue("queues")
    found = asked("mps", None)
    assert str(found).startswith(f"it has no {lacking}")
    streams = DeviceStreams(lambda: found)
    assert streams.current_stream("mps:0") is None
    assert streams.why_copies_wait("mps:0") == found


def test_a_device_whose_memory_knows_no_streams_has_copies_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("maia"))
    assert found_accelerator() == "its memory cannot be told of the streams that use it"


@pytest.fixture
def runtime() -> Mock:
    """Stand in for the CUDA runtime; a launch takes the error of the call before."""
    runtime = Mock()
    runtime.cudaHostRegister.return_value = 0
    runtime.cudaGetErrorString.side_effect = "error {}".format
    runtime.launch.side_effect = RuntimeError("CUDA error: out of memory")
    return runtime


@pytest.fixture
def streams(runtime: Mock, queues: None) -> DeviceStreams:
    found = asked("cuda", SimpleNamespace(cudart=lambda: runtime, current_device=runtime.launch))
    return DeviceStreams(lambda: found)


def test_only_the_accelerator_of_the_process_has_streams(streams: DeviceStreams) -> None:
    assert streams.current_stream("cpu") is None
    assert streams.current_stream("xpu:0") is None
    assert streams.why_copies_wait("xpu:0") == "PyTorch's accelerator in this process is cuda"
    assert streams.why_copies_wait("cuda:0") is None


def test_pages_are_locked_for_all_devices_and_unlocked_while_they_are_there(
    streams: DeviceStreams, runtime: Mock, pinned: list[int]
) -> None:
    memory = streams.locked_pages(8192)
    assert pinned == []  # no memory of PyTorch's own
    address = memory.ctypes.data
    del memory
    assert runtime.mock_calls == [call.cudaHostRegister(address, 8192, 1), call.cudaHostUnregister(address)]


def test_a_refusal_to_lock_pages_says_why_and_leaves_no_error_behind(streams: DeviceStreams, runtime: Mock) -> None:
    runtime.cudaHostRegister.return_value = 2
    with pytest.raises(OSError, match="cudaHostRegister: error 2"):
        streams.locked_pages(4096)
    assert runtime.launch.called  # the next operation of the program would raise it otherwise
