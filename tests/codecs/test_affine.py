"""Quantization: what the codes mean, what comes back exactly, and what rounding does on average."""

import numpy as np
import pytest

from tensorstash.codecs import Affine
from tensorstash.host.arrays import Array
from tensorstash.testing.contents import dense_spec, float_bits, float_values
from tensorstash.testing.layouts import special_values

pytestmark = pytest.mark.usefixtures("either_way")

FLOATS = ("float16", "bfloat16", "float32", "float64")


def there_and_back(codec: Affine, data: Array, dtype: str) -> Array:
    spec = dense_spec(data.shape, dtype)
    return codec.decode(codec.encode(data, spec), spec)


def same(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes()


def test_payload_holds_scales_lows_and_codes_with_the_first_in_the_lowest_bits() -> None:
    data = np.array([[10, 11, 12, 13, 25], [-1, -1, 0.5, 1, 2]], np.float32)
    payload = Affine(bits=4, group_size=4).encode(data, dense_spec(data.shape, "float32"))
    np.testing.assert_array_equal(payload[:16].view("f4"), np.array([3 / 15, 0, 2 / 15, 0], np.float32))
    np.testing.assert_array_equal(payload[16:32].view("f4"), [10, 25, -1, 2])
    codes = [0, 5, 10, 15, 0, 0, 0, 11, 15, 0]
    assert payload[32:].tolist() == [low | high << 4 for low, high in zip(codes[::2], codes[1::2], strict=True)]


def test_rounding_to_nearest_breaks_ties_to_even() -> None:
    data = np.array([0, 0.5, 1.5, 2.5, 255], np.float32)
    assert there_and_back(Affine(bits=8), data, "float32").tolist() == [0, 0, 2, 2, 255]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_bound_is_kept_and_is_hardly_more_than_what_rounding_loses(dtype: str, bits: int, rounding: str) -> None:
    codec = Affine(bits=bits, rounding=rounding)
    data = float_bits(np.random.default_rng(1).standard_normal((300, 128)), dtype)
    spec = dense_spec(data.shape, dtype)
    value, back = float_values(data, dtype), float_values(there_and_back(codec, data, dtype), dtype)
    bound = codec.error_bound(data, spec)
    worst = (np.abs(value - back) / bound).max()
    assert 0.7 < worst <= 1
    step = np.ptp(value, axis=1, keepdims=True) / (2**bits - 1)
    rounded = {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(dtype, 0) * np.abs(value).max(axis=1, keepdims=True)
    twice = {8: 0, 4: 1 / 34, 2: 1 / 170}[bits]
    assert (bound <= 1.01 * (step * (0.5 + twice if rounding == "nearest" else 1) + rounded)).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_constant_groups_come_back_exactly(dtype: str) -> None:
    values = np.random.default_rng(2).standard_normal((50, 1)) * 10.0 ** np.arange(-3, 2).repeat(10)[:, None]
    data = float_bits(np.repeat(values, 40, axis=1), dtype)
    spec = dense_spec(data.shape, dtype)
    assert same(there_and_back(Affine(bits=2, group_size=8), data, dtype), data)
    assert not Affine(bits=2, group_size=8).error_bound(data, spec).any()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("group_size", [28, 64])
def test_specials_come_back_and_their_neighbours_within_the_bound(
    dtype: str, bits: int, rounding: str, group_size: int
) -> None:
    rng = np.random.default_rng(3)
    data = float_bits(rng.standard_normal((64, 448)), dtype)
    ordinary = data.copy()
    raw = data.view(f"u{data.itemsize}")
    specials = special_values(dtype)
    specials = specials[~np.isfinite(float_values(specials, dtype))].view(raw.dtype)
    for k, special in enumerate(specials):
        raw[k, 64 * (k % 7) + k] = special
    raw[60:, :64] = specials[:4, None]
    codec = Affine(bits=bits, group_size=group_size, rounding=rounding)
    spec = dense_spec(data.shape, dtype)
    payload = codec.encode(data, spec)
    assert payload.nbytes == codec.encode(ordinary, spec).nbytes == codec.encoded_spec(spec).nbytes
    back = codec.decode(payload, spec)
    value, got = float_values(data, dtype), float_values(back, dtype)
    hit = ~np.isfinite(value)
    assert hit.sum() == specials.size + 4 * 64
    np.testing.assert_array_equal(got[hit], value[hit])
    bound = codec.error_bound(data, spec)
    assert (np.abs(got[~hit] - value[~hit]) <= bound[~hit]).all()
    assert not bound[hit].any()
    untouched = ~hit.reshape(64, 448 // group_size, group_size).any(axis=2).repeat(group_size, axis=1)
    without = codec.decode(codec.encode(ordinary, spec), spec)
    assert same(back[untouched], without[untouched])
    spread = np.ptp(float_values(ordinary, dtype)) / {2: 1, 4: 12, 8: 252}[bits]
    assert (bound[~hit] <= 1.01 * spread + 0.02).all()


def test_what_is_beyond_the_limit_becomes_the_limit() -> None:
    data = np.array([-3.4e38, -1.5, 0, 3e38], np.float32)
    back = there_and_back(Affine(bits=8, group_size=4), np.repeat(data, 40).reshape(4, 40), "float32")
    limit = np.float32(2.0**126)
    assert np.unique(back).tolist() == [-limit, -1.5, 0, limit]
    back = there_and_back(Affine(bits=8), np.tile(data, 40), "float32")
    np.testing.assert_allclose(np.unique(back), [-limit, 0, limit], atol=float(limit / 200))
    bound = Affine(bits=8).error_bound(np.tile(data, 40), dense_spec((160,), "float32"))
    assert (np.abs(back.astype(np.float64) - np.tile(data, 40)) <= bound).all()


@pytest.mark.parametrize(("low", "high"), [(0, 1e-45), (1e-40, 3e-39), (-1e-38, 1e-38), (-3e-31, 4e-31)])
def test_ranges_too_small_for_a_scale_come_back_as_their_lower_end(low: float, high: float) -> None:
    data = np.where(np.arange(20 * 64).reshape(20, 64) % 3 == 0, np.float32(low), np.float32(high))
    back = there_and_back(Affine(bits=8, group_size=64), data, "float32")
    assert (back == np.float32(low)).all()
    assert (high - low <= Affine(group_size=64).error_bound(data, dense_spec(data.shape, "float32"))).all()


def test_a_group_never_crosses_a_row_that_holds_one() -> None:
    data = np.random.default_rng(5).standard_normal((4, 300)).astype(np.float32)
    data *= np.float32([[1e-6], [1e6], [1e-3], [1]])
    back = there_and_back(Affine(bits=8, group_size=128), data, "float32")
    error = np.abs(back - data).max(axis=1)
    assert (error <= np.ptp(data, axis=1) / 255).all()


@pytest.mark.parametrize("shape", [(4000, 4), (500, 4, 8), (64, 10, 5, 5), (16000,), (1, 16000, 1)])
def test_short_rows_are_joined_so_that_scales_take_little_room(shape: tuple[int, ...]) -> None:
    data = np.random.default_rng(6).standard_normal(shape).astype(np.float32)
    assert data.nbytes / Affine().encode(data, dense_spec(shape, "float32")).nbytes > 3.6


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_stochastic_rounding_is_right_on_average(bits: int) -> None:
    data = np.random.default_rng(8).standard_normal((8, 128)).astype(np.float32)
    step = np.ptp(data, axis=1, keepdims=True) / (2**bits - 1)
    trials = 400
    backs = [
        there_and_back(Affine(bits=bits, rounding="stochastic", seed=seed), data, "float32") for seed in range(trials)
    ]
    mean = np.mean(backs, axis=0, dtype=np.float64)
    # The error of one rounding is at most a step, with a variance of at most a quarter of its square.
    deviation = (mean - data) / (step * 0.5 / np.sqrt(trials))
    assert np.abs(deviation).max() < 4.5
    assert np.abs(deviation.mean()) < 4.5 / np.sqrt(data.size)
    nearest = there_and_back(Affine(bits=bits), data, "float32")
    assert np.abs((nearest - data) / (step * 0.5 / np.sqrt(trials))).max() > 4.5


def test_stochastic_rounding_is_a_function_of_seed_and_tensor() -> None:
    rng = np.random.default_rng(9)
    data = rng.standard_normal((1000, 128)).astype(np.float32)
    spec = dense_spec(data.shape, "float32")
    before = np.random.get_state()[1].tolist()
    first = Affine(rounding="stochastic").encode(data, spec)
    assert same(first, Affine(rounding="stochastic").encode(data.copy(), spec))
    assert not same(first, Affine(rounding="stochastic", seed=1).encode(data, spec))
    assert np.random.get_state()[1].tolist() == before


def test_float64_is_computed_in_float64() -> None:
    data = 1.0 + 1e-12 * np.random.default_rng(11).random((10, 128))
    back = there_and_back(Affine(bits=8), data, "float64")
    assert np.abs(back - data).max() < 0.51e-12 / 255 + 4e-16
    assert len(np.unique(back)) > 100


def test_payloads_hold_no_negative_zeros() -> None:
    data = np.repeat(np.array([[-0.0, -0.0, -0.0], [-0.0, 0.0, 1], [-1, -0.0, 1]], np.float32), 20, 0)
    for size in (3, 9):
        payload = Affine(bits=2, group_size=size).encode(data, dense_spec(data.shape, "float32"))
        parameters = payload[: 8 * data.size // size].view("f4")
        assert not (np.signbit(parameters) & (parameters == 0)).any()


@pytest.mark.parametrize("number", [0.0, 1e-45, -1.5, 8e37])
def test_the_only_number_beside_specials_comes_back_exactly(number: float) -> None:
    data = np.array([number, np.inf, number, -np.inf, np.nan] * 30, np.float32)
    for bits in (2, 4, 8):
        np.testing.assert_array_equal(there_and_back(Affine(bits=bits), data, "float32"), data)


def test_neighbouring_numbers_come_back_exactly() -> None:
    data = np.where(np.arange(640) % 3 == 0, np.float32(1), np.nextafter(np.float32(1), np.float32(2)))
    assert same(there_and_back(Affine(bits=8, group_size=64), data, "float32"), data)


def test_tensors_are_not_rounded_by_the_same_random_bits() -> None:
    ramp = np.linspace(0, 1, 128 * 1000, dtype=np.float32).reshape(128, 1000).T.copy()
    codec, tensors = Affine(bits=2, rounding="stochastic"), (ramp, ramp * np.float32(1.5))
    up, other = (there_and_back(codec, tensor, "float32") > tensor for tensor in tensors)
    assert 0.2 < (up != other).mean() < 0.8


def test_the_largest_element_is_never_carried_beyond_the_last_code() -> None:
    rng = np.random.default_rng(10)
    low = rng.standard_normal((60_000, 1)).astype(np.float32)
    high = low + np.float32(10) ** rng.uniform(-3, 3, (60_000, 1)).astype(np.float32)
    data = np.where(np.arange(32) % 16 == 0, low, high)
    back = there_and_back(Affine(bits=8, group_size=32, rounding="stochastic"), data, "float32")
    assert (np.abs(back - data) < (high - low) / 200 + np.abs(low) * 1e-6).all()
