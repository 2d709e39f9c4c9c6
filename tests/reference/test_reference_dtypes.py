"""Element types: storage, rounding, promotion."""

from __future__ import annotations

import numpy as np
import pytest

from tensorstash.reference import DTYPES, from_buffer, ops, tensor


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_moving_operations_keep_every_bit(name: str) -> None:
    bits = np.random.default_rng(0).integers(0, 256, 64 * DTYPES[name].itemsize, dtype=np.uint8)
    x = from_buffer(bits, (8, 8), (8, 1), 0, name)
    for moved in (
        x.clone(),
        x.to("sim:0"),
        x.swap_last().contiguous().swap_last(),
        x[tensor(list(range(8)))],
        ops.concat(list(x.split(3))),
    ):
        assert moved.host_bits().tobytes() == x.host_bits().tobytes()


def test_bfloat16_agrees_with_truncated_float32_everywhere() -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    x = from_buffer(every.view(np.uint8), every.shape, (1,), 0, "bfloat16")
    wide = x.astype("float32")
    np.testing.assert_array_equal(wide.host_bits().view(np.uint32), every.astype(np.uint32) << 16)
    again = wide.astype("bfloat16").host_bits()
    number = ~np.isnan(wide.numpy())
    np.testing.assert_array_equal(again[number], every[number])


def test_types_do_not_mix() -> None:
    with pytest.raises(TypeError, match=r"add got tensors of float32 and bfloat16; use astype\(\)"):
        tensor([1.0]) + tensor([1.0], "bfloat16")
    assert (tensor([1.0]) + tensor([1.0], "bfloat16").astype("float32")).dtype.name == "float32"
