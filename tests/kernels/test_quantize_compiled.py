"""Quantization compiled and in NumPy: the same payloads, and the same elements, bit for bit; codes of a few bits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorstash.codecs import Affine
from tensorstash.host import native
from tensorstash.host.arrays import Array, borrowed
from tensorstash.testing.contents import dense_spec
from tensorstash.testing.layouts import special_values

DTYPES = ("float32", "bfloat16", "float16")

compiled = pytest.mark.skipif(native.functions is None, reason="nothing is compiled here")

shapes = st.lists(st.sampled_from([1, 2, 3, 7, 33, 64, 128, 129, 300, 2049]), max_size=3).map(tuple)
codecs = st.builds(
    Affine,
    bits=st.sampled_from([2, 4, 8]),
    group_size=st.sampled_from([2, 3, 5, 15, 16, 17, 33, 127, 128, 129, 300, 2048, 2049, 10**6]),
    rounding=st.sampled_from(["nearest", "stochastic"]),
    seed=st.integers(0, 2**40),
)


def in_numpy(call: object, *arguments: object) -> Array:
    """Return what a method of a codec gives where nothing is compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "functions", None)
        array: Array = call(*arguments)  # type: ignore[operator]
        return array


def floats(shape: tuple[int, ...], dtype: str, kind: str, seed: int) -> Array:
    """Return carrier bits: of any floats, of ordinary ones, of few special ones among them, or of constant groups."""
    rng, spec = np.random.default_rng(seed), dense_spec(shape, dtype)
    raw = rng.integers(0, 1 << 8 * spec.itemsize, spec.numel, np.uint64).astype(f"u{spec.itemsize}")
    if kind != "any":
        exponents = {"float32": 23, "bfloat16": 7, "float16": 10}[dtype]
        highest = (1 << 8 * spec.itemsize - 1) - 1 >> exponents
        largest = rng.integers(3, highest)
        ordinary = rng.integers(max(largest - 8, 0), largest, spec.numel).astype(raw.dtype)
        sign_and_fraction = raw.dtype.type(1 << 8 * spec.itemsize - 1 | (1 << exponents) - 1)
        raw = raw & sign_and_fraction | ordinary << raw.dtype.type(exponents)
    if kind == "special":
        odd = rng.random(spec.numel) < 0.02
        raw[odd] = rng.choice(special_values(dtype).view(raw.dtype), odd.sum())
    if kind == "constant":
        raw[rng.random(spec.numel) < 0.95] = raw[0]
    return raw.view(spec.carrier).reshape(shape)


@compiled
@settings(max_examples=200, deadline=None)
@given(codecs, shapes, st.sampled_from(DTYPES), st.sampled_from(["any", "ordinary", "special", "constant"]), st.data())
def test_payloads_and_elements_are_those_of_numpy(
    codec: Affine, shape: tuple[int, ...], dtype: str, kind: str, drawn: st.DataObject
) -> None:
    while np.prod(shape) > 200_000:
        shape = shape[1:]
    spec = dense_spec(shape, dtype)
    data = floats(shape, dtype, kind, drawn.draw(st.integers(0, 2**32)))
    payload = codec.encode(borrowed(data), spec)
    assert payload.tobytes() == in_numpy(codec.encode, data, spec).tobytes()
    assert codec.decode(payload, spec).tobytes() == in_numpy(codec.decode, payload, spec).tobytes()


@compiled
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_of_16_bits_comes_back_as_in_numpy(dtype: str) -> None:
    """Of float32, all with those upper 16 bits."""
    spec = dense_spec((512, 128), dtype)
    data = np.arange(1 << 16, dtype=np.uint16).view(dense_spec((1,), "bfloat16").carrier)
    bits = data.view(np.uint16)
    carrier = (bits.astype(np.uint32) << 16).view("f4") if dtype == "float32" else bits.view(spec.carrier)
    for order in (np.arange(1 << 16), np.random.default_rng(0).permutation(1 << 16)):
        array = carrier[order].reshape(spec.shape)
        for bits_per_code in (2, 4, 8):
            codec = Affine(bits=bits_per_code)
            payload = codec.encode(array, spec)
            assert payload.tobytes() == in_numpy(codec.encode, array, spec).tobytes()
            assert codec.decode(payload, spec).tobytes() == in_numpy(codec.decode, payload, spec).tobytes()


@compiled
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "float64"}, "float64"),
        ({"bits": 3}, "2, 4 or 8 bits"),
        ({"groups": (-4, -128, 128)}, "rows of groups"),
        ({"groups": (4, 0, 128)}, "rows of groups"),
        ({"groups": (4, 128, 0)}, "rows of groups"),
        ({"groups": (5, 128, 128)}, "5 rows of 128"),
        ({"groups": (2**62, 128, 128)}, "rows of 128"),
        ({"groups": (4, 128, 127)}, "a payload of"),
        ({"elements": 1}, "rows of 128"),
        ({"body": 1}, "a payload of"),
        ({"body": -1}, "a payload of"),
        ({"askew": 2}, "multiple of their size"),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_together_are_refused(change: dict[str, object], message: str) -> None:
    module = native.functions
    assert module is not None
    given = {"dtype": "float32", "bits": 8, "groups": (4, 128, 128), "elements": 0, "body": 0, "askew": 0} | change
    memory = np.zeros(8 * 512, np.uint8)
    start = given["askew"]
    elements = memory[start : start + 4 * (512 + given["elements"])]  # type: ignore[operator]
    body = np.zeros(2 * 4 * 4 + 512 + given["body"], np.uint8)  # type: ignore[operator]
    plan = given["dtype"], given["groups"], given["bits"]
    with pytest.raises(ValueError, match=message):
        module.affine_encode(elements, body, *plan, -1)
    with pytest.raises(ValueError, match=message):
        module.affine_decode(body, elements, *plan)
    assert not body.any()


@compiled
@pytest.mark.parametrize(
    ("name", "source", "target", "dtype"),
    [
        ("narrow_floats", np.zeros(20, np.uint32), np.zeros(19, np.uint16), "bfloat16"),
        ("narrow_floats", np.zeros(20, np.uint32), np.zeros(81, np.uint8), "float16"),
        ("narrow_floats", np.zeros(20, np.uint32), np.zeros(20, np.uint16), "float64"),
        ("widen_floats", np.zeros(40, np.uint16), np.zeros(79, np.uint8), "bfloat16"),
    ],
)
def test_floats_that_do_not_fit_are_refused(name: str, source: Array, target: Array, dtype: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        getattr(native.functions, name)(source, target, dtype)
