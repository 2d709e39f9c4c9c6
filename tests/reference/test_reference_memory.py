"""Memory: its owners and layouts, and what moves without a change."""

from __future__ import annotations

import numpy as np
import pytest

from tensorstash.reference import DTYPES, Parameter, from_buffer, no_grad, tensor, zeros


def test_leaves_and_views_may_change_where_nothing_is_recorded() -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    with no_grad():
        x[0].add_(1.0)
    assert x.tolist() == [2.0, 2.0]
    assert x.is_leaf
    assert zeros((6,)).as_strided((3, 1), (1, 0), 0).add_(1.0).tolist() == [[1.0]] * 3


def test_bases_name_the_owner_of_the_memory() -> None:
    weight = Parameter(zeros((2, 3)))
    with no_grad():
        unrecorded = weight[0]
    for view in (weight.T, weight[0][1:], weight.detach(), weight.detach()[0], unrecorded, unrecorded[1:]):
        assert view.base is weight
    assert weight.base is None
    assert weight.clone().base is None
    activation = weight * 1
    assert activation[0][1:].base is activation
    assert activation.detach().base is None


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_any_layout_can_be_built_over_raw_bytes(device: str) -> None:
    buffer = np.arange(64, dtype=np.uint8)
    x = from_buffer(buffer, (2, 3), (5, 1), 6, "uint16", device)
    assert (x.offset, x.strides, x.storage.nbytes, x.device) == (6, (5, 1), 64, device)
    np.testing.assert_array_equal(x.host_bits(), buffer.view(np.uint16)[3:].reshape(-1)[[[0, 1, 2], [5, 6, 7]]])
    assert np.shares_memory(x.storage.buffer, buffer) == (device == "cpu")
    skewed = np.empty(200, np.uint8)[24:]
    assert from_buffer(skewed, (2,), (1,), 4, "uint16", device).data_ptr() % 64 == (skewed.ctypes.data + 4) % 64


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_moving_operations_keep_every_bit(name: str) -> None:
    bits = np.random.default_rng(0).integers(0, 256, 64 * DTYPES[name].itemsize, dtype=np.uint8)
    x = from_buffer(bits, (8, 8), (8, 1), 0, name)
    for moved in (x.clone(), x.to("sim:0"), x.T.contiguous().T, x[tensor(list(range(8)))]):
        assert moved.host_bits().tobytes() == x.host_bits().tobytes()
