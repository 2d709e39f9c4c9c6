"""Rounding agrees with PyTorch's, and lossless codecs do not care how PyTorch sets the floating-point unit."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from codec_cases import CODECS

from tensorstash.codecs import Affine, AsType
from tensorstash.kernels.floats import FORMATS
from tensorstash.spec import DTYPES
from tensorstash.testing.contents import contents, dense_spec


def hard_floats() -> np.ndarray:
    """Return float32 values on, beside and between the ties of every narrow format, and random bits."""
    high = np.arange(1 << 16, dtype=np.uint32) << 16
    low = [0, 1, 0x7FFF, 0x8000, 0x8001, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x3001, 0xFFFF]
    random = np.random.default_rng(0).integers(0, 1 << 32, 1 << 20, np.uint32)
    return np.concatenate([*(high | np.uint32(bits) for bits in low), random]).view(np.float32)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("source", ["float32", "float64", "bfloat16", "float16"])
def test_astype_rounds_as_torch_does(dtype: str, source: str) -> None:
    codec = AsType(dtype=dtype)
    values = torch.from_numpy(hard_floats())
    if source == "float64":
        values = values.double() * (1 + 1e-9)
    values = values.to(getattr(torch, source))
    carrier = DTYPES[source].carrier
    data = values.view(torch.uint16).numpy() if source == "bfloat16" else values.numpy()
    spec = dense_spec(data.shape, source)
    if not codec.accepts(spec):
        assert values.element_size() <= getattr(torch, dtype).itemsize
        return
    encoded = codec.encode(data, spec)
    expected = values.to(getattr(torch, dtype))
    got = torch.from_numpy(encoded.view(np.uint8)).view(getattr(torch, dtype))
    assert (got.isnan() == expected.isnan()).all()
    assert (got.isnan() == values.isnan()).all()
    there = ~expected.isnan()
    unsigned = torch.uint8 if expected.element_size() == 1 else torch.uint16
    assert (got.view(unsigned)[there] == expected.view(unsigned)[there]).all()
    assert (torch.signbit(got.float()) == torch.signbit(values)).all()
    back = codec.decode(encoded, spec)
    widened = got.to(getattr(torch, source))
    wide = {"bfloat16": torch.uint16, "float16": torch.uint16, "float32": torch.uint32, "float64": torch.uint64}[source]
    assert back.dtype == carrier
    assert (back.view(f"u{back.itemsize}")[there.numpy()] == widened.view(wide)[there].numpy()).all()


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_bound_of_a_cast_is_hardly_more_than_what_rounding_loses(dtype: str) -> None:
    codec = AsType(dtype=dtype)
    data = hard_floats()
    data = data[np.isfinite(data) & (np.abs(data) > 2.0**-20) & (np.abs(data) < 400)]
    spec = dense_spec(data.shape, "float32")
    error = np.abs(codec.decode(codec.encode(data, spec), spec).astype(np.float64) - data)
    worst = (error / codec.error_bound(data, spec)).max()
    assert 0.99 < worst <= 1


@pytest.fixture
def flushed_subnormals() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush subnormal numbers to zero")
    yield
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("flushed_subnormals")
@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec.lossless], ids=repr)
def test_lossless_codecs_keep_subnormals_where_the_processor_flushes_them(codec: object) -> None:
    assert np.array([1e-45], np.float32) * np.float32(1) == 0
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        spec = dense_spec((20_001,), dtype)
        subnormal = np.arange(4).astype(f"u{spec.itemsize}").view(spec.carrier)
        tensors = [*contents(spec).values()]
        tensors += [np.random.default_rng(0).choice(some, 20_001) for some in (subnormal, subnormal[:2])]
        for data in tensors if codec.accepts(spec) else ():
            assert codec.decode(codec.encode(data, spec), spec).tobytes() == data.tobytes()


@pytest.mark.usefixtures("flushed_subnormals")
def test_subnormals_are_widened_where_the_processor_flushes_them() -> None:
    halves = np.arange(1 << 10, dtype=np.uint16)
    widened = AsType(dtype="float16").decode(halves.view(np.float16), dense_spec(halves.shape, "float32"))
    assert widened.tobytes() == (halves * np.float32(2.0**-24)).tobytes()


def test_too_large_for_the_format() -> None:
    data = np.array([448, 464, 465, 57344, 61440, 65519, 65520, 3.4e38, np.inf, -np.inf], np.float32)
    spec = dense_spec(data.shape, "float32")
    backs = {
        dtype: AsType(dtype=dtype).decode(AsType(dtype=dtype).encode(data, spec), spec).tolist() for dtype in FORMATS
    }
    inf = float("inf")
    assert backs["float8_e4m3fn"] == [448.0] * 9 + [-448.0]
    assert backs["float8_e5m2"] == [448.0, 448.0, 448.0, 57344.0, inf, inf, inf, inf, inf, -inf]
    assert backs["float16"] == [448.0, 464.0, 465.0, 57344.0, 61440.0, 65504.0, inf, inf, inf, -inf]
    assert backs["bfloat16"][-3:] == [inf, inf, -inf]


def test_eight_bit_payloads_are_those_of_torchs_own_operator() -> None:
    data = torch.from_numpy(np.random.default_rng(0).standard_normal((4096, 128)).astype(np.float32))
    payload = Affine().encode(data.numpy(), dense_spec((4096, 128), "float32"))
    theirs = torch.ops.quantized.embedding_bag_byte_prepack(data).numpy()
    parameters = np.ascontiguousarray(theirs[:, 128:]).view(np.float32)
    np.testing.assert_array_equal(payload[: 4096 * 4].view(np.float32), parameters[:, 0])
    np.testing.assert_array_equal(payload[4096 * 4 : 4096 * 8].view(np.float32), parameters[:, 1])
    np.testing.assert_array_equal(payload[4096 * 8 :].reshape(4096, 128), theirs[:, :128])
