"""Operations element by element; operands broadcast, and gradients are summed back to their shapes."""

from __future__ import annotations

import math

import numpy as np

from tensorstash.reference.autograd.graph import Meta
from tensorstash.reference.autograd.primitive import Operand, primitive
from tensorstash.reference.creation import full
from tensorstash.reference.dispatch import composite, register
from tensorstash.reference.storage.dtypes import Array, DTypeLike, as_dtype
from tensorstash.reference.storage.memory import dense_copy
from tensorstash.reference.tensor import Tensor

_GELU_SCALE = math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715


@primitive(a=lambda g: g, b=lambda g: g)
def add(a: Array, b: Array) -> Array:
    """The sum of two."""
    return np.add(a, b)


@primitive(a=lambda g: g, b=lambda g: -g)
def sub(a: Array, b: Array) -> Array:
    """The difference of two."""
    return np.subtract(a, b)


@primitive(a=lambda g, b: g * _conj(b), b=lambda g, a: g * _conj(a))
def mul(a: Array, b: Array) -> Array:
    """The product of two."""
    return np.multiply(a, b)


@primitive(floating=True, a=lambda g, b: g / _conj(b), b=lambda g, a, b: -g * _conj(a / (b * b)))
def div(a: Array, b: Array) -> Array:
    """The quotient of two; integers divide as float32."""
    return np.true_divide(a, b)


@primitive(a=lambda g: -g)
def neg(a: Array) -> Array:
    """The value with the other sign."""
    return np.negative(a)


def _base_gradient(g: Tensor, base: Tensor, exponent: Operand) -> Tensor:
    if isinstance(exponent, Tensor):
        # At exponent 0 the slope is 0 also where base ** -1 is infinite.
        lowered = where(exponent.eq(0), 0.0, exponent - 1)
        return g * _conj(exponent * base**lowered)
    return g * 0 if exponent == 0 else g * _conj(base ** (exponent - 1) * exponent)


def _exponent_gradient(g: Tensor, base: Operand, exponent: Tensor, out: Tensor) -> Tensor:
    if not isinstance(base, Tensor):
        base = full((), base, out.dtype, out.device)
    return g * _conj(out * log(where(base.eq(0), 1.0, base)))


@primitive(base=_base_gradient, exponent=_exponent_gradient)
def power(base: Array, exponent: Array) -> Array:
    """`base` raised to `exponent`."""
    return np.asarray(np.power(base, exponent))


@primitive(floating=True, x=lambda g, out: g * _conj(out))
def exp(x: Array) -> Array:
    """The exponential."""
    return np.exp(x)


@primitive(floating=True, x=lambda g, x: g / _conj(x))
def log(x: Array) -> Array:
    """The natural logarithm."""
    return np.log(x)


@primitive(floating=True, x=lambda g, out: g / (2 * _conj(out)))
def sqrt(x: Array) -> Array:
    """The square root."""
    return np.sqrt(x)


@primitive(floating=True, x=lambda g, out: g * _conj(1 - out * out))
def tanh(x: Array) -> Array:
    """The hyperbolic tangent."""
    return np.tanh(x)


@primitive(floating=True, x=lambda g, out: g * _conj(out * (1 - out)))
def sigmoid(x: Array) -> Array:
    """The logistic function."""
    return np.asarray(1 / (1 + np.exp(-x)))


@primitive(x=lambda g, out: g * (out > 0))
def relu(x: Array) -> Array:
    """The positive part."""
    return np.maximum(x, 0)


def _gelu_gradient(g: Tensor, x: Tensor) -> Tensor:
    t = tanh((x + x * x * x * _GELU_CUBIC) * _GELU_SCALE)
    inner = (x * x * (3 * _GELU_CUBIC) + 1) * _GELU_SCALE
    return g * ((t + 1) * 0.5 + x * (1 - t * t) * inner * 0.5)


@primitive(floating=True, x=_gelu_gradient)
def gelu(x: Array) -> Array:
    """The tanh form of the Gaussian error linear unit (Hendrycks and Gimpel, arXiv:1606.08415)."""
    return np.asarray(0.5 * x * (1 + np.tanh(_GELU_SCALE * (x + _GELU_CUBIC * x * x * x))))


def _absolute_gradient(g: Tensor, x: Tensor) -> Tensor:
    if x.dtype.is_complex:
        raise NotImplementedError("the gradient of a complex magnitude; write (z * z.conj()).real().sqrt()")
    return g * sign(x)


@primitive(x=_absolute_gradient)
def absolute(x: Array) -> Array:
    """The magnitude."""
    return np.absolute(x)


@primitive()
def sign(x: Array) -> Array:
    """-1, 0 or 1; has no gradient."""
    return np.sign(x)


def _larger_share(mine: Tensor, other: Tensor) -> Tensor:
    return ((mine > other).astype(mine.dtype) + (mine >= other).astype(mine.dtype)) * 0.5


@primitive(a=lambda g, a, b: g * _larger_share(a, b), b=lambda g, a, b: g * _larger_share(b, a))
def maximum(a: Array, b: Array) -> Array:
    """The larger of two; where they are equal each takes half of the gradient."""
    return np.maximum(a, b)


def _chosen(g: Tensor, condition: Tensor) -> Tensor:
    return where(condition, g, 0)


def _not_chosen(g: Tensor, condition: Tensor) -> Tensor:
    return where(condition, 0, g)


@primitive(moves=True, a=_chosen, b=_not_chosen)
def where(condition: Array, a: Array, b: Array) -> Array:
    """`a` where `condition` (boolean) holds, else `b`."""
    return np.where(condition, a, b)


@primitive()
def eq(a: Array, b: Array) -> Array:
    """Whether two are equal."""
    return np.equal(a, b)


@primitive()
def lt(a: Array, b: Array) -> Array:
    """Whether `a` is less."""
    return np.less(a, b)


@primitive()
def le(a: Array, b: Array) -> Array:
    """Whether `a` is less or equal."""
    return np.less_equal(a, b)


@primitive()
def gt(a: Array, b: Array) -> Array:
    """Whether `a` is greater."""
    return np.greater(a, b)


@primitive()
def ge(a: Array, b: Array) -> Array:
    """Whether `a` is greater or equal."""
    return np.greater_equal(a, b)


@primitive(x=lambda g: conj(g))
def conjugate(x: Array) -> Array:
    """The complex conjugate."""
    return np.conjugate(x)


@primitive(x=lambda g, x_meta: astype(g, x_meta.dtype))
def real_part(x: Array) -> Array:
    """The real part of complex elements."""
    return np.real(x).copy()


@primitive(x=lambda g: g * 1j)
def imaginary_part(x: Array) -> Array:
    """The imaginary part of complex elements."""
    return np.imag(x).copy()


@primitive(x=lambda g, x_meta: astype(g, x_meta.dtype))
def cast(x: Array, *, dtype: DTypeLike) -> Array:
    """The same value in another element type."""
    return x


@primitive(moves=True, x=lambda g: g)
def clone(x: Array) -> Array:
    """A copy that keeps a dense permuted layout."""
    return dense_copy(x)


@primitive(moves=True, x=lambda g: g)
def pack_contiguous(x: Array) -> Array:
    """A dense row-major copy."""
    return np.array(x, order="C")


def _move_back(g: Tensor, x_meta: Meta) -> Tensor:
    return to(g, x_meta.device)


@primitive(moves=True, x=_move_back)
def copy_to(x: Array, *, device: str) -> Array:
    """A copy on another device that keeps a dense permuted layout."""
    return dense_copy(x)


def conj(x: Tensor) -> Tensor:
    """Give the complex conjugate; a real tensor is its own."""
    return conjugate(x) if x.dtype.is_complex else x


def real(x: Tensor) -> Tensor:
    """Give the real part; a real tensor is its own."""
    return real_part(x) if x.dtype.is_complex else x


def imag(x: Tensor) -> Tensor:
    """Give the imaginary part; zeros of a real tensor."""
    return imaginary_part(x) if x.dtype.is_complex else x * 0


def astype(x: Tensor, dtype: DTypeLike) -> Tensor:
    """Give the tensor in another element type, itself where it has it already."""
    kind = as_dtype(dtype)
    return x if x.dtype is kind else cast(x, dtype=kind)


def to(x: Tensor, device: str, *, copy: bool = False) -> Tensor:
    """Give the tensor on a device, itself where it is there already, unless `copy`."""
    return x if x.device == device and not copy else copy_to(x, device=device)


@composite
def contiguous(x: Tensor) -> Tensor:
    """Give the tensor dense and row-major, itself where it is."""
    return x if x.layout.is_contiguous else pack_contiguous(x)


def _conj(value: Operand) -> Operand:
    return conj(value) if isinstance(value, Tensor) else value.conjugate()


for _function in (conj, real, imag, astype, to):
    register(_function.__name__, _function)
