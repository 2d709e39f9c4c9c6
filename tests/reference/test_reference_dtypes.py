"""Element types: storage, rounding, promotion."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tensorstash.reference import DTYPES, Tensor, from_buffer, no_grad, ops, tensor, zeros


@pytest.mark.parametrize("name", DTYPES)
def test_every_type_is_stored_moved_and_read(name: str) -> None:
    x = tensor([[0, 1], [1, 0]], name)
    assert (x.dtype.name, x.nbytes) == (name, 4 * DTYPES[name].itemsize)
    assert x.to("sim:0").swap_last().clone().to("cpu").tolist() == [[0, 1], [1, 0]]
    assert ops.concat([x, x])[tensor([1, 2])].tolist() == [[1, 0], [0, 1]]
    assert x.host_bits().dtype == DTYPES[name].carrier


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
        zeros((8, 8), name).copy_(x),
    ):
        assert moved.host_bits().tobytes() == x.host_bits().tobytes()


def test_bfloat16_rounds_to_nearest_even_and_keeps_nan() -> None:
    values = [1.0, 1.00390625, 1.01171875, 3.4e38, math.inf, -0.0, math.nan]
    stored = tensor(values, "bfloat16")
    assert stored.host_bits().tolist()[:6] == [0x3F80, 0x3F80, 0x3F82, 0x7F80, 0x7F80, 0x8000]
    assert math.isnan(stored[-1].item())
    silent = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(tensor(silent).astype("bfloat16").astype("float32").numpy()).all()


def test_bfloat16_agrees_with_truncated_float32_everywhere() -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    x = from_buffer(every.view(np.uint8), every.shape, (1,), 0, "bfloat16")
    wide = x.astype("float32")
    np.testing.assert_array_equal(wide.host_bits().view(np.uint32), every.astype(np.uint32) << 16)
    again = wide.astype("bfloat16").host_bits()
    number = ~np.isnan(wide.numpy())
    np.testing.assert_array_equal(again[number], every[number])


def test_narrow_floats_compute_in_single_precision_and_round_once() -> None:
    x = tensor([1.0, 2.0**-9, 2.0**-9], "bfloat16")
    assert x.sum().item() == 1.0
    assert tensor([2048.0, 1.0, 1.0], "float16").sum().item() == 2050.0
    assert (x * x).dtype.name == "bfloat16"


def test_types_do_not_mix() -> None:
    with pytest.raises(TypeError, match=r"add got tensors of float32 and bfloat16; use astype\(\)"):
        tensor([1.0]) + tensor([1.0], "bfloat16")
    assert (tensor([1.0]) + tensor([1.0], "bfloat16").astype("float32")).dtype.name == "float32"


def test_numbers_only_lift_the_category() -> None:
    assert (tensor([1.0], "bfloat16") * 2).dtype.name == "bfloat16"
    assert (tensor([1.0], "float64") * 2.5).dtype.name == "float64"
    assert (tensor([1]) * 2.5).dtype.name == "float32"
    assert (tensor([1]) / 2).tolist() == [0.5]
    assert (tensor([True]) + 1).dtype.name == "int64"
    assert (tensor([1.0], "float64") * 1j).dtype.name == "complex128"
    assert (2 - tensor([0.5], "float16")).dtype.name == "float16"
    assert (tensor([1.0]) * np.float64(2)).dtype.name == "float32"


def test_reductions_of_integers_and_masks() -> None:
    assert tensor([True, True]).sum().item() == 2
    assert tensor([1, 2]).mean().item() == 1.5


def test_what_is_no_operand_is_refused() -> None:
    with pytest.raises(TypeError, match="tensor or a number, got str"):
        tensor([1.0]) + "1"  # type: ignore[operator]
    with pytest.raises(TypeError, match="no element type 'float8'"):
        tensor([1.0], "float8")
    with pytest.raises(TypeError):
        np.ones(2) * tensor([1.0, 1.0])


def test_host_array_is_refused_where_it_would_mislead() -> None:
    with pytest.raises(TypeError, match="NumPy has no bfloat16"):
        zeros((1,), "bfloat16").numpy()
    with pytest.raises(RuntimeError, match=r"detach\(\)\.numpy\(\)"):
        zeros((1,), requires_grad=True).numpy()


def test_non_finite_results_are_silent() -> None:
    with no_grad():
        results: list[Tensor] = [tensor([1.0]) / 0.0, tensor([-1.0]) ** 0.5, tensor([1e38]) * 1e38]
        results.append(tensor([math.nan]).astype("int64"))
    assert [math.isfinite(r.item()) for r in results] == [False, False, False, True]
