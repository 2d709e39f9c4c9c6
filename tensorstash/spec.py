"""The spec of a saved tensor: shape, strides, dtype, place; and the arithmetic of strides and bytes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import Any, Literal

from numpy.typing import NDArray

Array = NDArray[Any]
"""A C-contiguous NumPy array; a run of bytes is a one-dimensional ``uint8`` array."""

ALIGNMENT = 64
"""Bytes to which frameworks align fresh allocations; kernels choose code paths by the address modulo this."""

DTypeKind = Literal["bool", "int", "uint", "float", "complex", "bits"]


@dataclass(frozen=True, slots=True)
class DType:
    """One element type, by the name that every framework agrees on; ``carrier`` is the NumPy dtype of its bits.

    The kind is the meaning of arithmetic on it; ``"bits"`` are only ever moved.
    """

    name: str
    itemsize: int
    kind: DTypeKind
    carrier: str


def _table() -> Mapping[str, DType]:
    of_numpy: dict[DTypeKind, tuple[int, ...]] = {"int": (1, 2, 4, 8), "uint": (1, 2, 4, 8), "float": (2, 4, 8)}
    of_numpy["complex"] = 8, 16
    rows = [DType("bool", 1, "bool", "bool")]
    rows += [DType(f"{kind}{8 * n}", n, kind, f"{kind}{8 * n}") for kind, sizes in of_numpy.items() for n in sizes]
    variants = "e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu"
    rows += [DType(f"float8_{variant}", 1, "float", "uint8") for variant in variants]
    rows += [DType("bfloat16", 2, "float", "uint16"), DType("complex32", 4, "complex", "uint32")]
    rows += [DType(name, 1, "bits", "uint8") for name in ("float4_e2m1fn_x2", "bits8")]
    rows += [DType("bits16", 2, "bits", "uint16")]
    return MappingProxyType({row.name: row for row in rows})


DTYPES: Mapping[str, DType] = _table()
"""Every element type the package can move, by name."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The properties of a saved tensor that must come back when it is unpacked.

    Args:
        shape: sizes of the dimensions; ``(-1,)`` stands for a run of bytes of unknown length.
        strides: distance between neighbours of each dimension, in elements; 0, gaps and negative ones are allowed.
        offset: distance of the first element from the start of its storage, in bytes.
        dtype: a name of :data:`DTYPES`.
        device: the framework's name of the place, such as ``"cpu"`` or ``"cuda:0"``.
        alignment: address of the first element modulo :data:`ALIGNMENT`, in bytes.
        conj: whether the elements are to be read conjugated, as PyTorch does lazily.
        neg: whether they are to be read negated, likewise.
        module: dotted name of the wrapped module whose forward saved the tensor; empty when not known.

    Raises:
        ValueError: shape and strides differ in length.
        KeyError: the dtype is not in :data:`DTYPES`.

    >>> spec = TensorSpec((2, 3), (1, 2), 0, "float32", "cpu")
    >>> spec.numel, spec.nbytes, str(spec)
    (6, 24, 'float32(2, 3) on cpu')
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: str
    device: str
    alignment: int = 0
    conj: bool = False
    neg: bool = False
    module: str = ""
    itemsize: int = field(init=False, compare=False, repr=False)
    numel: int = field(init=False, compare=False, repr=False)
    nbytes: int = field(init=False, compare=False, repr=False)
    carrier: str = field(init=False, compare=False, repr=False)
    """The NumPy dtype name that holds the elements' bits on the host."""
    order: "MemoryOrder" = field(init=False, compare=False, repr=False)
    """The distinct elements in the order of memory."""
    _hash: int = field(init=False, compare=False, repr=False)
    _dense: "TensorSpec | None" = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.strides):
            raise ValueError(f"a shape of {len(self.shape)} dimensions with {len(self.strides)} strides")
        row = DTYPES[self.dtype]
        numel = prod(self.shape)
        object.__setattr__(self, "carrier", row.carrier)
        object.__setattr__(self, "itemsize", row.itemsize)
        object.__setattr__(self, "numel", numel)
        object.__setattr__(self, "order", memory_order(self.shape, self.strides))
        object.__setattr__(self, "nbytes", numel * row.itemsize)
        kind = self.dtype, self.device, self.alignment, self.conj, self.neg
        object.__setattr__(self, "_hash", hash((self.shape, self.strides, self.offset, *kind, self.module)))
        object.__setattr__(self, "_dense", None)  # worked out when it is first asked for, and then known

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        inside = f" of {self.module}" if self.module else ""
        return f"{self.dtype}{self.shape} on {self.device}{inside}"

    @property
    def kind(self) -> DTypeKind:
        """The meaning of arithmetic on the elements."""
        return DTYPES[self.dtype].kind

    def inside(self, module: str) -> "TensorSpec":
        """Return the same spec, saved by the forward of ``module``."""
        return replace(self, module=module)

    def dense(self) -> "TensorSpec":
        """Return the spec that codecs see: the distinct elements in memory order, contiguous, without lazy flags."""
        dense = self._dense
        if dense is None:
            shape = self.order.shape
            dense = TensorSpec(shape, contiguous_strides(shape), 0, self.dtype, self.device, module=self.module)
            object.__setattr__(self, "_dense", dense)
        return dense


def opaque_bytes(spec: TensorSpec) -> TensorSpec:
    """Return the spec of a run of bytes of unknown length, on the device of ``spec``."""
    return TensorSpec((-1,), (1,), 0, "uint8", spec.device, module=spec.module)


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a C-contiguous tensor."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@dataclass(frozen=True, slots=True)
class MemoryOrder:
    """The distinct elements of a strided tensor, with dimensions in the order of memory.

    Reading with this shape and these strides, from the lowest element on, visits every distinct element exactly once at
    ascending addresses; where dimensions overlap one another (sliding windows), the whole span, gaps included.

    Args:
        shape: sizes; dimensions of size one and of stride zero are left out.
        strides: in elements, positive, descending.
        span: elements from the lowest to the highest, both included; 0 for an empty tensor.
        lead: elements that the tensor's first one lies above the lowest; 0 unless strides are negative.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    span: int
    lead: int = 0
    block: tuple[tuple[int, int], ...] = field(init=False, compare=False, repr=False)
    """(size, stride) pairs of the set of elements, equal for transposes, reversed views and reshapes: one payload."""
    is_dense: bool = field(init=False, compare=False, repr=False)
    """Whether there are no gaps, so that the elements are one run of memory."""

    def __post_init__(self) -> None:
        block: list[tuple[int, int]] = []
        for size, stride in zip(self.shape, self.strides, strict=True):
            if block and block[-1][1] == stride * size:
                block[-1] = (block[-1][0] * size, stride)
            else:
                block.append((size, stride))
        object.__setattr__(self, "block", tuple(block))
        object.__setattr__(self, "is_dense", prod(self.shape) == self.span)

    def lowest(self, spec: TensorSpec) -> int:
        """Return where the lowest element of a tensor of ``spec`` lies in its storage, in bytes."""
        return spec.offset - self.lead * spec.itemsize

    def alignment(self, spec: TensorSpec) -> int:
        """Return the address of the lowest element of a tensor of ``spec``, modulo :data:`ALIGNMENT`, in bytes."""
        return (spec.alignment - self.lead * spec.itemsize) % ALIGNMENT


@lru_cache(4096)
def memory_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> MemoryOrder:
    """Return the memory order of a strided tensor; overlapping windows have that of their whole span."""
    if 0 in shape:
        return MemoryOrder((0,), (1,), 0)
    walked = [(stride, size) for size, stride in zip(shape, strides, strict=True) if size != 1 and stride != 0]
    lead = sum(-stride * (size - 1) for stride, size in walked if stride < 0)
    dims = sorted(((abs(stride), size) for stride, size in walked), reverse=True)
    reach = 0
    overlapping = False
    for stride, size in reversed(dims):
        overlapping |= stride <= reach
        reach += stride * (size - 1)
    span = reach + 1
    if overlapping:
        return MemoryOrder((span,), (1,), span, lead)
    return MemoryOrder(tuple(size for _, size in dims), tuple(stride for stride, _ in dims), span, lead)
