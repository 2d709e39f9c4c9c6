"""The operations as methods and operators of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from tensorstash.reference.dispatch import call
from tensorstash.reference.storage.dtypes import Array, DTypeLike
from tensorstash.reference.storage.layout import Layout

T = TypeVar("T")


class Operators(Generic[T]):
    """Methods that look their operation up by name; `T` is the tensor type they return."""

    __slots__ = ()

    __array_ufunc__ = None  # NumPy must leave `array * tensor` to the tensor

    def _call(self, name: str, *operands: Any, **attributes: Any) -> T:
        result: T = call(name, *operands, **attributes)
        return result

    def __add__(self, other: T | complex) -> T:
        return self._call("add", self, other)

    def __radd__(self, other: complex) -> T:
        return self._call("add", self, other)

    def __sub__(self, other: T | complex) -> T:
        return self._call("sub", self, other)

    def __rsub__(self, other: complex) -> T:
        return self._call("sub", other, self)

    def __mul__(self, other: T | complex) -> T:
        return self._call("mul", self, other)

    def __rmul__(self, other: complex) -> T:
        return self._call("mul", self, other)

    def __truediv__(self, other: T | complex) -> T:
        return self._call("div", self, other)

    def __rtruediv__(self, other: complex) -> T:
        return self._call("div", other, self)

    def __pow__(self, other: T | complex) -> T:
        return self._call("power", self, other)

    def __rpow__(self, other: complex) -> T:
        return self._call("power", other, self)

    def __matmul__(self, other: T) -> T:
        return self._call("matmul", self, other)

    def __neg__(self) -> T:
        return self._call("neg", self)

    def __abs__(self) -> T:
        return self._call("absolute", self)

    def __lt__(self, other: T | complex) -> T:
        return self._call("lt", self, other)

    def __le__(self, other: T | complex) -> T:
        return self._call("le", self, other)

    def __gt__(self, other: T | complex) -> T:
        return self._call("gt", self, other)

    def __ge__(self, other: T | complex) -> T:
        return self._call("ge", self, other)

    def eq(self, other: T | complex) -> T:
        return self._call("eq", self, other)

    def pow(self, exponent: T | complex) -> T:
        return self._call("power", self, exponent)

    def exp(self) -> T:
        return self._call("exp", self)

    def log(self) -> T:
        return self._call("log", self)

    def sqrt(self) -> T:
        return self._call("sqrt", self)

    def tanh(self) -> T:
        return self._call("tanh", self)

    def sigmoid(self) -> T:
        return self._call("sigmoid", self)

    def relu(self) -> T:
        return self._call("relu", self)

    def abs(self) -> T:
        return self._call("absolute", self)

    def sign(self) -> T:
        return self._call("sign", self)

    def conj(self) -> T:
        return self._call("conj", self)

    def real(self) -> T:
        return self._call("real", self)

    def imag(self) -> T:
        return self._call("imag", self)

    def astype(self, dtype: DTypeLike) -> T:
        return self._call("astype", self, dtype)

    def clone(self) -> T:
        """Copy, keeping a dense permuted layout."""
        return self._call("clone", self)

    def contiguous(self) -> T:
        """Give self where it is dense and row-major, else such a copy."""
        return self._call("contiguous", self)

    def to(self, device: str, *, copy: bool = False) -> T:
        """Move to a device; self where it is there already, unless `copy`."""
        return self._call("to", self, device, copy=copy)

    def sum(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> T:
        return self._call("sum", self, axis=axis, keepdims=keepdims)

    def mean(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> T:
        return self._call("mean", self, axis=axis, keepdims=keepdims)

    def max(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> T:
        return self._call("max", self, axis=axis, keepdims=keepdims)

    def sum_to(self, shape: Sequence[int]) -> T:
        """Sum over the dimensions that broadcasting from `shape` has repeated."""
        return self._call("sum_to", self, tuple(shape))

    def matmul(self, other: T) -> T:
        return self._call("matmul", self, other)

    def softmax(self, axis: int = -1) -> T:
        return self._call("softmax", self, axis=axis)

    def log_softmax(self, axis: int = -1) -> T:
        return self._call("log_softmax", self, axis=axis)

    def permute(self, *axes: int) -> T:
        return self._call("permute", self, axes)

    def transpose(self, first: int, second: int) -> T:
        return self._call("transpose", self, first, second)

    def swap_last(self) -> T:
        """Transpose the last two dimensions."""
        return self._call("transpose", self, -2, -1)

    def expand(self, *shape: int) -> T:
        return self._call("expand", self, shape)

    def reshape(self, *shape: int) -> T:
        """Give a view of that shape where strides allow it, else a copy."""
        return self._call("reshape", self, shape)

    def view(self, *shape: int) -> T:
        """Give a view of that shape; raises ValueError where only a copy could have it."""
        return self._call("view", self, shape)

    def squeeze(self, axis: int) -> T:
        return self._call("squeeze", self, axis)

    def unsqueeze(self, axis: int) -> T:
        return self._call("unsqueeze", self, axis)

    def split(self, size: int, axis: int = 0) -> tuple[T, ...]:
        """Give views of `size` along `axis`; the last may be smaller."""
        parts: tuple[T, ...] = call("split", self, size, axis)
        return parts

    def as_strided(self, shape: Sequence[int], strides: Sequence[int], offset: int | None = None) -> T:
        """Give any layout over the storage; `offset` is absolute and in bytes, by default that of self."""
        return self._call("as_strided", self, shape, strides, offset)

    def as_layout(self, layout: Layout) -> T:
        return self._call("as_layout", self, layout)

    def __getitem__(self, key: Any) -> T:
        return self._call("getitem", self, key)

    def __setitem__(self, key: Any, value: T | complex | Array) -> None:
        call("setitem", self, key, value)

    def add_(self, other: T | complex) -> T:
        return self._call("update", self, "add", other)

    def sub_(self, other: T | complex) -> T:
        return self._call("update", self, "sub", other)

    def mul_(self, other: T | complex) -> T:
        return self._call("update", self, "mul", other)

    def div_(self, other: T | complex) -> T:
        return self._call("update", self, "div", other)

    def exp_(self) -> T:
        return self._call("update", self, "exp")

    def relu_(self) -> T:
        return self._call("update", self, "relu")

    def copy_(self, source: T | complex) -> T:
        """Overwrite with `source`, broadcast and cast to this shape and type, from any device."""
        return self._call("copy_", self, source)

    def fill_(self, value: complex) -> T:
        return self._call("copy_", self, value)

    def zero_(self) -> T:
        return self._call("copy_", self, 0)

    __iadd__ = add_
    __isub__ = sub_
    __imul__ = mul_
    __itruediv__ = div_
