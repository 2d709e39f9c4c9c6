"""The operations as methods and operators of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from tensorstash.reference.dispatch import call
from tensorstash.reference.storage.dtypes import Array

T = TypeVar("T")
Operation = Callable[..., T]


def _runs(name: str, *first: Any) -> Callable[..., Any]:
    """Return the method that runs an operation on the tensor, on what comes first, and on its arguments."""

    def method(self: Any, *operands: Any, **attributes: Any) -> Any:
        return call(name, self, *first, *operands, **attributes)

    return method


def _runs_swapped(name: str) -> Callable[..., Any]:
    return lambda self, other: call(name, other, self)


class Operators(Generic[T]):
    """Methods that look their operation up by name; `T` is the tensor type they return."""

    __slots__ = ()

    __array_ufunc__ = None  # NumPy must leave `array * tensor` to the tensor

    def _call(self, name: str, *operands: Any, **attributes: Any) -> T:
        result: T = call(name, *operands, **attributes)
        return result

    __add__: Operation[T] = _runs("add")
    __radd__: Operation[T] = _runs("add")
    __sub__: Operation[T] = _runs("sub")
    __rsub__: Operation[T] = _runs_swapped("sub")
    __mul__: Operation[T] = _runs("mul")
    __rmul__: Operation[T] = _runs("mul")
    __truediv__: Operation[T] = _runs("div")
    __rtruediv__: Operation[T] = _runs_swapped("div")
    __pow__: Operation[T] = _runs("power")
    __rpow__: Operation[T] = _runs_swapped("power")
    __matmul__: Operation[T] = _runs("matmul")
    __neg__: Operation[T] = _runs("neg")
    __abs__: Operation[T] = _runs("absolute")
    __lt__: Operation[T] = _runs("lt")
    __le__: Operation[T] = _runs("le")
    __gt__: Operation[T] = _runs("gt")
    __ge__: Operation[T] = _runs("ge")
    __getitem__: Operation[T] = _runs("getitem")
    eq: Operation[T] = _runs("eq")
    pow: Operation[T] = _runs("power")
    exp: Operation[T] = _runs("exp")
    log: Operation[T] = _runs("log")
    sqrt: Operation[T] = _runs("sqrt")
    tanh: Operation[T] = _runs("tanh")
    sigmoid: Operation[T] = _runs("sigmoid")
    relu: Operation[T] = _runs("relu")
    abs: Operation[T] = _runs("absolute")
    sign: Operation[T] = _runs("sign")
    conj: Operation[T] = _runs("conj")
    real: Operation[T] = _runs("real")
    imag: Operation[T] = _runs("imag")
    astype: Operation[T] = _runs("astype")
    clone: Operation[T] = _runs("clone")
    contiguous: Operation[T] = _runs("contiguous")
    to: Operation[T] = _runs("to")
    matmul: Operation[T] = _runs("matmul")
    transpose: Operation[T] = _runs("transpose")
    squeeze: Operation[T] = _runs("squeeze")
    unsqueeze: Operation[T] = _runs("unsqueeze")
    as_strided: Operation[T] = _runs("as_strided")
    as_layout: Operation[T] = _runs("as_layout")
    copy_: Operation[T] = _runs("copy_")
    fill_: Operation[T] = _runs("copy_")
    add_: Operation[T] = _runs("update", "add")
    sub_: Operation[T] = _runs("update", "sub")
    mul_: Operation[T] = _runs("update", "mul")
    div_: Operation[T] = _runs("update", "div")
    exp_: Operation[T] = _runs("update", "exp")
    relu_: Operation[T] = _runs("update", "relu")
    zero_: Operation[T] = _runs("copy_", 0)
    __iadd__, __isub__, __imul__, __itruediv__ = add_, sub_, mul_, div_

    def sum(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> T:
        return self._call("sum", self, axis=axis, keepdims=keepdims)

    def mean(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> T:
        return self._call("mean", self, axis=axis, keepdims=keepdims)

    def max(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> T:
        return self._call("max", self, axis=axis, keepdims=keepdims)

    def sum_to(self, shape: Sequence[int]) -> T:
        """Sum over the dimensions that broadcasting from `shape` has repeated."""
        return self._call("sum_to", self, tuple(shape))

    def softmax(self, axis: int = -1) -> T:
        return self._call("softmax", self, axis=axis)

    def log_softmax(self, axis: int = -1) -> T:
        return self._call("log_softmax", self, axis=axis)

    def permute(self, *axes: int) -> T:
        return self._call("permute", self, axes)

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

    def split(self, size: int, axis: int = 0) -> tuple[T, ...]:
        """Give views of `size` along `axis`; the last may be smaller."""
        parts: tuple[T, ...] = call("split", self, size, axis)
        return parts

    def __setitem__(self, key: Any, value: T | complex | Array) -> None:
        call("setitem", self, key, value)
