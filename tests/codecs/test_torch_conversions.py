"""Rounding agrees with PyTorch's, and lossless codecs do not care how PyTorch sets the floating-point unit."""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
import torch
from codec_cases import CODECS

from tensorstash.codecs import AsType
from tensorstash.kernels.floats import FORMATS
from tensorstash.spec import DTYPES
from tensorstash.testing.contents import contents, dense_spec


@cache
def hard_floats() -> np.ndarray:
    """Return float32 values on, beside and between the ties of every narrow format, and random bits."""
    high = np.arange(1 << 16, dtype=np.uint32) << 16
    low = [0, 1, 0x7FFF, 0x8000, 0x8001, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x3001, 0xFFFF]
    random = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, np.uint32)
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
