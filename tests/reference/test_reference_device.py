"""The simulated accelerator: memory of its own, exact accounting, no shortcuts for the host."""

from __future__ import annotations

import numpy as np
import pytest

from tensorstash.reference import (
    DeviceError,
    MemorySpace,
    Storage,
    from_buffer,
    from_numpy,
    nn,
    no_grad,
    tensor,
    zeros,
)
from tensorstash.reference.storage.memory import memory


def test_bytes_are_counted_exactly_and_return_with_the_last_view(sim: MemorySpace) -> None:
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


def test_devices_have_separate_accounts(sim: MemorySpace) -> None:
    other = memory("sim:1")
    before = sim.allocated_bytes, other.allocated_bytes
    x = zeros((10,), device="sim:1")
    assert (sim.allocated_bytes, other.allocated_bytes) == (before[0], before[1] + x.nbytes)


def test_host_code_cannot_reach_device_memory(sim: MemorySpace) -> None:
    x = tensor([1.0, 2.0], device="sim:0")
    with pytest.raises(DeviceError, match=r"use \.to\('cpu'\) first"):
        x.numpy()
    with pytest.raises(DeviceError):
        np.asarray(x)
    np.testing.assert_array_equal(x.to("cpu").numpy(), [1.0, 2.0])
    assert x.tolist() == [1.0, 2.0]


def test_devices_do_not_mix(sim: MemorySpace) -> None:
    x, y = zeros((2,), device="sim:0"), zeros((2,), device="sim:1")
    for operation in (lambda: x + y, lambda: x + zeros((2,)), lambda: zeros((3,))[tensor([0], device="sim:1")]):
        with pytest.raises(DeviceError, match="on one device, got"):
            operation()
    assert (x + 1.0).device == "sim:0"


def test_unknown_device_is_refused() -> None:
    with pytest.raises(ValueError, match="no device 'cuda'; expected one of cpu, sim:0, sim:1"):
        zeros((1,), device="cuda")


def test_moving_copies_and_carries_gradients_back(sim: MemorySpace) -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    there = x.to("sim:0")
    assert there.storage is not x.storage
    assert there.to("sim:0") is there
    assert there.to("sim:0", copy=True).storage is not there.storage
    (there * there).sum().to("cpu").backward()
    assert (x.grad.device, x.grad.tolist()) == ("cpu", [2.0, 4.0])


def test_moving_keeps_a_dense_layout() -> None:
    x = tensor(np.arange(24.0).reshape(2, 3, 4)).permute(2, 0, 1)
    there = x.to("sim:1")
    assert there.strides == x.strides
    np.testing.assert_array_equal(there.host_bits(), x.numpy())


def test_host_array_shares_memory_and_keeps_it_accounted() -> None:
    host = memory("cpu")
    before = host.allocated_bytes
    x = zeros((4,))
    array = x[1:].numpy()
    x.add_(1.0)
    assert array.tolist() == [1.0, 1.0, 1.0]
    array[0] = 7.0
    assert x.tolist() == [1.0, 7.0, 1.0, 1.0]
    assert x._version == 1
    del x
    assert host.allocated_bytes == before + 16
    del array
    assert host.allocated_bytes == before


def test_array_is_adopted_on_the_host() -> None:
    array = np.arange(6.0).reshape(2, 3)
    x = from_numpy(array)
    array[0, 0] = 9.0
    assert x[0, 0].item() == 9.0
    with pytest.raises(ValueError, match="C-contiguous"):
        from_numpy(array.T)
    array.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        from_numpy(array)


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


def test_storage_is_a_token_that_never_comes_back() -> None:
    first = zeros((4,)).storage
    second = zeros((4,)).storage
    assert first != second
    assert len({first, second, first}) == 2
    assert zeros((4,)).data_ptr() % 64 == 0


def test_refused_storage_is_not_charged() -> None:
    host = memory("cpu")
    before = host.allocated_bytes
    with pytest.raises(ValueError, match="flat, writable"):
        Storage(np.zeros((2, 2), np.uint8), host)
    assert host.allocated_bytes == before


def test_module_moves_and_keeps_its_parameter_objects(sim: MemorySpace) -> None:
    model = nn.Sequential(nn.Linear(3, 4, generator=np.random.default_rng(0)), nn.GELU())
    own = list(model.parameters())
    before = sim.allocated_bytes
    model.to("sim:0")
    assert all(a is b for a, b in zip(own, model.parameters(), strict=True))
    assert sim.allocated_bytes - before == sum(value.nbytes for value in model.state_dict().values())
    x = tensor(np.ones((2, 3), np.float32), device="sim:0")
    model(x).sum().backward()
    assert own[0].grad.device == "sim:0"
    with no_grad():
        own[0].grad = None
