"""Strided layouts and bit patterns that every backend has to bring back."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from tensorstash.host.arrays import Array
from tensorstash.spec import DTYPES
from tensorstash.testing.lab import Lab, Tensor


@dataclass(frozen=True, slots=True)
class Strided:
    """A view of a buffer: shape, strides and offset, in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def reach(self) -> int:
        """Elements the buffer must have."""
        if 0 in self.shape:
            return self.offset + 1
        last = sum(max(stride, 0) * (size - 1) for size, stride in zip(self.shape, self.strides, strict=True))
        return self.offset + last + 1

    @property
    def is_reversed(self) -> bool:
        """Whether elements lie before the first one, which not every framework has."""
        return min(self.strides, default=0) < 0

    def of(self, lab: Lab, dtype: str) -> Tensor:
        """Return a tensor of this layout over a fresh buffer of :func:`pattern` bits."""
        buffer = lab.tensor(pattern(dtype, self.reach + 3), dtype)
        return lab.as_strided(buffer, self.shape, self.strides, self.offset)


LAYOUTS: Mapping[str, Strided] = MappingProxyType(
    {
        "contiguous": Strided((3, 4), (4, 1)),
        "offset": Strided((3, 4), (4, 1), 5),
        "transposed": Strided((4, 3), (1, 4)),
        "permuted at an offset": Strided((2, 3, 4), (4, 8, 1), 7),
        "channels last": Strided((2, 3, 4, 5), (60, 1, 15, 3)),
        "split columns": Strided((3, 4), (12, 1), 4),
        "every other column": Strided((3, 4), (8, 2), 1),
        "expanded": Strided((3, 4), (0, 1)),
        "expanded scalar": Strided((2, 3), (0, 0), 2),
        "overlapping windows": Strided((5, 3), (1, 1)),
        "overlap that no dimension explains": Strided((2, 2, 3), (3, 2, 2)),
        "gaps": Strided((3, 4), (9, 2), 1),
        "odd strides of size one": Strided((1, 4, 1), (9, 1, 7), 3),
        "columns reversed at an offset": Strided((3, 4), (4, -1), 8),
        "every other column reversed": Strided((3, 4), (8, -2), 7),
        "all reversed and transposed": Strided((4, 3), (-1, -4), 11),
        "reversed, expanded and with gaps": Strided((2, 3, 4), (0, -9, 2), 19),
        "reversed overlapping windows": Strided((5, 3), (1, -1), 2),
        "reversed of size one": Strided((1, 4), (-4, -1), 5),
        "empty reversed": Strided((0, 3), (-3, 1), 4),
        "scalar": Strided((), ()),
        "scalar at an offset": Strided((), (), 3),
        "empty": Strided((0,), (1,)),
        "empty with dimensions": Strided((0, 3), (3, 1)),
    }
)
"""Layouts that programs save, by name."""


REAL_FLOATS: Mapping[str, int] = MappingProxyType({"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52})
"""Bits of the mantissa, by dtype."""


def pattern(dtype: str, count: int) -> Array:
    """Return ``count`` elements of ``dtype`` as carrier bits; every other float is of :func:`special_values`."""
    carrier = np.dtype(DTYPES[dtype].carrier)
    rng = np.random.default_rng(count)
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(np.bool_)
    bits = np.frombuffer(bytearray(rng.bytes(count * carrier.itemsize)), carrier)
    if dtype in REAL_FLOATS:
        bits[1::2] = np.resize(special_values(dtype), count // 2)
    return bits


def special_values(dtype: str) -> Array:
    """Return signed zeros, infinities, NaNs with payloads and subnormals of a real floating type as carrier bits."""
    itemsize, mantissa = DTYPES[dtype].itemsize, REAL_FLOATS[dtype]
    sign = 1 << (8 * itemsize - 1)
    infinity = (sign - 1) >> mantissa << mantissa
    quiet = 1 << (mantissa - 1)
    positive = [0, 1, quiet, infinity, infinity | quiet, infinity | quiet | 5, infinity | 3]
    bits = [word | flag for word in positive for flag in (0, sign)]
    return np.array(bits, f"uint{8 * itemsize}").view(DTYPES[dtype].carrier)


def assert_same_bits(got: Array, expected: Array, case: str) -> None:
    """Fail unless two arrays have equal dtype, shape and bytes."""
    __tracebackhide__ = True
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape), (
        f"{case}: got {got.dtype}{got.shape}, expected {expected.dtype}{expected.shape}"
    )
    assert got.tobytes() == expected.tobytes(), f"{case}: the bits differ: got {got!r}, expected {expected!r}"


def assert_same_arrays(got: Mapping[str, Array], expected: Mapping[str, Array], case: str) -> None:
    """Fail unless two named sets of arrays agree bit for bit."""
    __tracebackhide__ = True
    assert list(got) == list(expected), f"{case}: got {list(got)}, expected {list(expected)}"
    for name, array in expected.items():
        assert_same_bits(got[name], array, f"{case}: {name}")


def floats(*shape: int, seed: int = 0, dtype: str = "float32") -> Array:
    """Return reproducible values in [-1, 1)."""
    return np.random.default_rng([seed, *shape]).uniform(-1, 1, shape).astype(dtype)
