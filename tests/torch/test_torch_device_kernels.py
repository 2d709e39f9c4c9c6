"""Kernels for devices give what the NumPy codecs give: bit for bit, but for the bits of a NaN that was cast.

Without a device, Triton's kernels run in its interpreter, on memory of the CPU, in a process of their own: whether they
are interpreted is settled when they are defined.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tensorstash.backends.torch import kernels
from tensorstash.backends.torch.backend import TorchBackend
from tensorstash.backends.torch.kernels import device_kernel
from tensorstash.backends.torch.layout import DTYPE_NAMES
from tensorstash.codecs import Affine, AsType, Lossless, PackBits, TwoValued
from tensorstash.host.arrays import Array
from tensorstash.kernels.groups import Groups
from tensorstash.protocols import Codec
from tensorstash.spec import TensorSpec
from tensorstash.testing.labs.torch import TorchLab
from tests.samples import IS_LONG, pairwise

if sys.platform != "linux":
    pytest.skip("Triton has no build for this system", allow_module_level=True)

from tensorstash.backends.torch import triton_kernels as torch_triton

LAB = TorchLab()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).is_available()), None)

DTYPES = ["float16", "bfloat16", "float32"]
SHAPES = [((33, 256), 128), ((3, 500), 100), ((130,), 64), ((5, 4, 3, 8), 128), ((7, 61), 33)]
CONTENTS = ["specials"] if INTERPRETED else ["normal", "zeros and constants", "specials", "any bits"]
SOME = pairwise if INTERPRETED else product
PLACES = [pytest.param("cpu", id="interpreted")] if INTERPRETED else []
if DEVICE and not INTERPRETED:
    PLACES = [pytest.param(DEVICE, id="on a device", marks=pytest.mark.gpu)]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    # The interpreter runs on NumPy, which warns of what a device does silently.
    with np.errstate(all="ignore" if INTERPRETED else "warn"):
        yield


def spec_of(tensor: Tensor) -> TensorSpec:
    return TorchBackend().spec(tensor)


def same_bits(got: Array, expected: Array, dtype: torch.dtype, codec: Codec) -> bool:
    """Whether two arrays of carriers are equal; after a cast, which a device does, every NaN counts as one."""
    if not isinstance(codec, AsType):
        return got.tobytes() == expected.tobytes()
    one, other = (torch.from_numpy(array.copy()).view(dtype) for array in (got, expected))
    are_nan = one.isnan() & other.isnan() if dtype.is_floating_point else torch.zeros(one.shape, dtype=torch.bool)
    return bool((torch.from_numpy(got == expected) | are_nan).all())


def check(codec: Codec, tensor: Tensor, place: str) -> None:
    """Compare payload and elements with those of the NumPy codec."""
    tensor = tensor.to(place)
    spec = spec_of(tensor)
    before = LAB.bits(tensor).tobytes()
    made = device_kernel(codec, spec)
    assert made is not None
    with np.errstate(all="ignore"):
        expected = codec.encode(LAB.bits(tensor), spec)
        back = codec.decode(expected, spec)
    payload = made.encode(tensor)
    assert (payload.device, payload.is_contiguous()) == (tensor.device, True)
    encoded = codec.encoded_spec(spec)
    assert DTYPE_NAMES[payload.dtype] == encoded.dtype
    assert encoded.shape in ((-1,), tuple(payload.shape))
    assert same_bits(LAB.bits(payload), expected, payload.dtype, codec)
    elements = made.decode(payload)
    assert (elements.dtype, elements.shape, elements.device) == (tensor.dtype, tensor.shape, tensor.device)
    assert same_bits(LAB.bits(elements), back, elements.dtype, codec)
    assert LAB.bits(tensor).tobytes() == before


def floats(shape: tuple[int, ...], dtype: str, content: str) -> Tensor:
    rng = np.random.default_rng(0)
    values = torch.from_numpy(rng.standard_normal(shape) * 3)
    if content == "zeros and constants":
        values = values.relu().round()
    tensor = values.to(getattr(torch, dtype))
    if content == "specials":
        numbers = [torch.nan, torch.inf, -torch.inf, -0.0, 0.0, 1e-45, 1e-39, 2.0**126, -3e38, 6e4, 1e30]
        places = rng.choice(tensor.numel(), max(len(numbers), tensor.numel() // 300))
        odd = torch.tensor(numbers, dtype=torch.float64).to(tensor.dtype)
        tensor.view(-1)[places] = odd[torch.from_numpy(rng.integers(0, len(odd), places.size))]
        tensor.view(-1)[: tensor.numel() // 9] = torch.from_numpy(rng.choice([torch.nan, torch.inf, -0.0, 5.0], 1))
    if content == "any bits":
        raw = rng.integers(0, 256, tensor.numel() * tensor.itemsize, np.uint8)
        tensor = torch.from_numpy(raw).view(tensor.dtype).reshape(shape)
    return tensor


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize(("dtype", "bits", "rounding"), [*SOME(DTYPES, [2, 4, 8], ["nearest", "stochastic"])])
def test_quantization(dtype: str, bits: int, rounding: str, content: str, place: str) -> None:
    # The interpreter is slow, and a dtype matters only where elements are read and written.
    for shape, group_size in SHAPES[-2:] if INTERPRETED else SHAPES:
        codec = Affine(bits=bits, group_size=group_size, rounding=rounding, seed=3)
        tensor = floats(shape, dtype, content)
        if torch_triton.fits(Groups.of(shape, group_size), bits, tensor.dtype):
            check(codec, tensor, place)
        else:
            assert device_kernel(codec, spec_of(tensor)) is None


@pytest.mark.parametrize("group_size", [2000, 16_384])
def test_long_groups(group_size: int, place: str) -> None:
    tensor = floats((2, min(3 * group_size + 8, 50_000)), "float32", "specials")
    check(Affine(bits=4, group_size=group_size), tensor, place)


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_casts(target: str, source: str, content: str, place: str) -> None:
    tensor = floats((7, 1171), source, content)
    codec = AsType(dtype=target)
    if codec.accepts(spec_of(tensor)):
        check(codec, tensor, place)


@pytest.mark.parametrize("target", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_every_tie_is_broken_to_even(target: str, place: str) -> None:
    high = np.arange(0, 1 << 16, 61 if INTERPRETED else 1, dtype=np.uint32) << 16
    ties = np.concatenate([high | np.uint32(low) for low in (0, 0x7FFF, 0x8000, 0x8001, 0x0FFF, 0x1000, 0x1001)])
    check(AsType(dtype=target), torch.from_numpy(ties.view(np.float32)), place)


@pytest.mark.parametrize("shape", [(1,), (7,), (8,), (3, 333), (20_000,)])
def test_masks(shape: tuple[int, ...], place: str) -> None:
    check(PackBits(), torch.from_numpy(np.random.default_rng(1).random(shape) < 0.3), place)


def test_booleans_of_other_bytes_are_true(place: str) -> None:
    flags = torch.arange(256, dtype=torch.uint8, device=place).view(torch.bool)
    made = device_kernel(PackBits(), spec_of(flags))
    assert made is not None
    assert made.decode(made.encode(flags)).view(torch.uint8).tolist() == [0] + [1] * 255


def test_memory_at_any_address(place: str) -> None:
    raw = torch.arange(4012, device=place).to(torch.uint8)
    for start in (4, 8, 12):
        check(Affine(bits=4), raw[start : start + 4000].view(torch.float32), place)
        check(AsType(), raw[start : start + 4000].view(torch.float32), place)
        check(PackBits(), raw[start + 1 :] > 9, place)


def test_what_has_no_kernel() -> None:
    small = TensorSpec((6,), (1,), 0, "float32", "cuda:0")
    for codec in (Lossless(), TwoValued(), Affine(group_size=1)):
        assert device_kernel(codec, small) is None
    assert device_kernel(Affine(group_size=40_000), TensorSpec((50_000,), (1,), 0, "float32", "cuda:0")) is None
    assert device_kernel(PackBits(), TensorSpec((0,), (1,), 0, "bool", "cuda:0")) is None
    large = TensorSpec((600,), (1,), 0, "float64", "cuda:0")
    assert device_kernel(Affine(), large) is None
    assert device_kernel(AsType(), large) is None
    for device in ("cpu", "meta:0"):  # the host, and a device without Triton
        for codec, dtype in ((Affine(), "float16"), (AsType(), "float32"), (PackBits(), "bool")):
            assert kernels.kernel(codec, TensorSpec((600,), (1,), 0, dtype, device)) is None


def test_triton_is_not_asked_for_where_the_codec_has_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(kernels, "runs_triton", asked.append)
    for codec in (Lossless(), TwoValued(), Affine()):
        kernels.kernel(codec, TensorSpec((600,), (1,), 0, "float32", "cuda:0"))
    assert asked == ["cuda"]


@pytest.mark.skipif(INTERPRETED, reason="this is the inner run")
def test_triton_kernels_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", __file__]
    inner = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=880, check=False
    )
    assert inner.returncode == 0, inner.stdout[-3000:] + inner.stderr[-2000:]
    assert re.fullmatch(r"\d+ passed, 2 skipped in .*", inner.stdout.splitlines()[-1]), inner.stdout[-3000:]


@pytest.mark.skipif(INTERPRETED, reason="interpreted functions cannot be compiled")
def test_triton_kernels_compile_for_a_device_and_round_every_operation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    pointers = {"fp32": "*i32", "fp16": "*i16", "bf16": "*i16"}
    groups = dict.fromkeys(("count", "per_row", "length", "size"), "i32")
    tile = {"TALL": 8, "WIDTH": 128, "BITS": 4}
    cases = [("fp32", True, True), ("bf16", False, False), ("fp16", True, False)]
    for dtype, whole, stochastic in cases[: 2 + IS_LONG]:
        known = {**tile, "WHOLE": whole, "DTYPE": dtype}
        signature = {"source": pointers[dtype], "payload": "*u8", "seed": "i64", **groups}
        code = compiled(torch_triton._quantize, signature, {**known, "STOCHASTIC": stochastic})
        assert "div.rn.f32" in code
        signature = {"target": pointers[dtype], "payload": "*u8", **groups}
        assert "mul.rn.f32" in compiled(torch_triton._dequantize, signature, known)
    ones = known | dict.fromkeys(groups, 1)  # Triton makes an argument of 1 a constant
    assert compiled(torch_triton._dequantize, {"target": pointers[dtype], "payload": "*u8"}, ones)
    words = {"words": "*i64", "total": "*i64", "count": "i32"}
    assert "atom" in compiled(torch_triton._add, words, {"MULTIPLIER": 2**32 + 15, "SIZE": 4096})


def compiled(function: Any, signature: dict[str, str], known: dict[str, Any]) -> str:
    """Return the assembly of a kernel, in which nothing is fused, approximated or flushed to zero."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(function, {**signature, **dict.fromkeys(known, "constexpr")}, known)
    kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=dict(torch_triton.OPTIONS))
    assembly: str = kernel.asm["ptx"]
    for loose in ("fma.", "div.full", "div.approx", "rcp.approx", ".ftz"):
        assert loose not in assembly
    return assembly
