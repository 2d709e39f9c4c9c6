"""Quantization with PyTorch's own operators gives the payloads of the codec, and says so before it is used."""

import numpy as np
import pytest
import torch
from codec_cases import contents, spec_of, to_float64

from tensorstash.backends import torch_fbgemm
from tensorstash.backends.torch import TorchBackend
from tensorstash.backends.torch_fbgemm import AffineKernel, affine_kernel
from tensorstash.buffers import Array
from tensorstash.codecs import Affine
from tensorstash.codecs.quantizer import Quantizer

SHAPES = ((), (0,), (1,), (7,), (3, 1, 5), (2, 300), (129, 33), (1000, 197), (64, 384), (5000, 128), (2, 65_537))
DTYPES = ("float32", "bfloat16", "float16")
CODECS = tuple(Affine(bits=bits, group_size=size) for bits, size in ((8, 128), (4, 128), (2, 64), (8, 33), (4, 5)))


def as_tensor(data: Array, dtype: str) -> torch.Tensor:
    return torch.from_numpy(data.copy()).view(getattr(torch, dtype))


def kernel_of(codec: Affine, data: Array, dtype: str) -> AffineKernel:
    kernel = affine_kernel(codec, spec_of(data.shape, dtype))
    assert kernel is not None, "this build of PyTorch has no such operators, or they compute something else"
    return kernel


@pytest.mark.parametrize("codec", CODECS, ids=repr)
@pytest.mark.parametrize("dtype", DTYPES)
def test_payloads_are_those_of_the_codec_bit_for_bit(codec: Affine, dtype: str) -> None:
    for shape in SHAPES:
        for name, data in contents(shape, dtype):
            spec, kernel = spec_of(shape, dtype), kernel_of(codec, data, dtype)
            payload = kernel.encode(as_tensor(data, dtype))
            assert payload.numpy().tobytes() == codec.encode(data, spec).tobytes(), f"{name} of {shape}"
            back = kernel.decode(payload)
            assert (back.dtype, back.shape) == (getattr(torch, dtype), shape)
            bits = back.view(getattr(torch, spec.carrier)).numpy()
            value, got = to_float64(data, dtype), to_float64(bits, dtype)
            with np.errstate(invalid="ignore"):
                kept = (np.abs(value - got) <= codec.error_bound(data, spec)) | (value == got)
            assert (kept | (np.isnan(value) & np.isnan(got))).all(), name


@pytest.fixture
def by_numpy(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the runs that are left to NumPy."""
    assert torch_fbgemm._agrees()  # which asks NumPy once
    runs: list[int] = []
    quantize = Quantizer.quantize

    def counted(self: Quantizer, source: Array, run: object, codes: Array) -> object:
        runs.append(source.size)
        return quantize(self, source, run, codes)  # type: ignore[arg-type]

    monkeypatch.setattr(Quantizer, "quantize", counted)
    return runs


@pytest.mark.parametrize("scale", [1e6, 1.0, 1e-3, 1e-9, 1e-14])
@pytest.mark.parametrize("shape", [(4096, 128), (3000, 197)])
def test_ordinary_tensors_are_not_left_to_numpy(shape: tuple[int, int], scale: float, by_numpy: list[int]) -> None:
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float32) * np.float32(scale)
    data[::7] = 0
    kernel_of(Affine(), data, "float32").encode(as_tensor(data, "float32"))
    assert not by_numpy


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e38, 1e-30])
@pytest.mark.parametrize("row", [0, 2000, 4095])
def test_what_the_operators_would_get_wrong_is_left_to_numpy(value: float, row: int, by_numpy: list[int]) -> None:
    data = np.random.default_rng(0).standard_normal((4096, 128)).astype(np.float32)
    data[row, 5] = value
    if value == 1e-30:
        data[row] *= np.float32(1e-30)
    kernel = kernel_of(Affine(), data, "float32")
    payload = kernel.encode(as_tensor(data, "float32"))
    assert by_numpy
    assert payload.numpy().tobytes() == Affine().encode(data, spec_of(data.shape, "float32")).tobytes()


def test_the_backend_offers_it_for_host_memory_and_rounding_to_nearest_only() -> None:
    backend, spec = TorchBackend(), spec_of((64, 128), "float32")
    assert isinstance(backend.kernel(Affine(bits=4), spec), AffineKernel)
    assert backend.kernel(Affine(rounding="stochastic"), spec) is None
    assert backend.kernel(Affine(), spec_of((64, 128), "float64")) is None


def test_operators_that_compute_something_else_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    agrees = torch_fbgemm._agrees.__wrapped__
    assert agrees()
    quantize = torch_fbgemm.FbgemmQuantizer.quantize

    def one_off(self: Quantizer, source: Array, run: object, codes: Array) -> object:
        found = quantize(self, source, run, codes)  # type: ignore[arg-type]
        codes[17] ^= 1
        return found

    monkeypatch.setattr(torch_fbgemm.FbgemmQuantizer, "quantize", one_off)
    assert not agrees()


def test_user_state_does_not_matter() -> None:
    data = np.random.default_rng(0).standard_normal((700, 128)).astype(np.float32)
    kernel, tensor = kernel_of(Affine(), data, "float32"), as_tensor(data, "float32")
    payload = kernel.encode(tensor)
    with torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
        again = kernel.encode(tensor)
        back = kernel.decode(again)
    assert torch.equal(again, payload)
    assert torch.equal(back, kernel.decode(payload))
