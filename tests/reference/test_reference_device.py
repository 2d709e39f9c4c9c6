"""The simulated accelerator: memory of its own, exact accounting, no shortcuts for the host."""

from __future__ import annotations

import numpy as np
import pytest

from tensorstash.reference import DeviceError, from_buffer, memory, tensor, zeros


def test_bytes_are_counted_exactly_and_return_with_the_last_view() -> None:
    sim = memory("sim:0")
    before = sim.allocated_bytes
    x = zeros((1000, 3), "float16", device="sim:0")
    view = x[5:, 1]
    assert sim.allocated_bytes == before + 6000
    del x
    assert sim.allocated_bytes == before + 6000
    y = view * view
    assert sim.allocated_bytes == before + 6000 + 995 * 2
    del view
    assert sim.allocated_bytes == before + 995 * 2
    del y
    assert sim.allocated_bytes == before


def test_host_code_cannot_reach_device_memory() -> None:
    x = tensor([1.0, 2.0], device="sim:0")
    with pytest.raises(DeviceError, match=r"use \.to\('cpu'\) first"):
        x.numpy()
    np.testing.assert_array_equal(x.to("cpu").numpy(), [1.0, 2.0])
    assert x.tolist() == [1.0, 2.0]


def test_devices_do_not_mix() -> None:
    x, y = zeros((2,), device="sim:0"), zeros((2,), device="sim:1")
    for operation in (lambda: x + y, lambda: x + zeros((2,)), lambda: zeros((3,))[tensor([0], device="sim:1")]):
        with pytest.raises(DeviceError, match="on one device, got"):
            operation()
    assert (x + 1.0).device == "sim:0"


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_any_layout_can_be_built_over_raw_bytes(device: str) -> None:
    buffer = np.arange(64, dtype=np.uint8)
    x = from_buffer(buffer, (2, 3), (5, 1), 6, "uint16", device)
    assert (x.offset, x.strides, x.storage.nbytes, x.device) == (6, (5, 1), 64, device)
    np.testing.assert_array_equal(x.host_bits(), buffer.view(np.uint16)[3:].reshape(-1)[[[0, 1, 2], [5, 6, 7]]])
    assert np.shares_memory(x.storage.buffer, buffer) == (device == "cpu")
    skewed = np.empty(200, np.uint8)[24:]
    assert from_buffer(skewed, (2,), (1,), 4, "uint16", device).data_ptr() % 64 == (skewed.ctypes.data + 4) % 64
    with pytest.raises(ValueError, match="ends at byte 66 of a storage of 64 bytes"):
        from_buffer(buffer, (30,), (1,), 6, "uint16", device)
    with pytest.raises(ValueError, match="flat, writable uint8"):
        from_buffer(buffer.view(np.uint16), (2,), (1,), 0, "uint16", "cpu")
