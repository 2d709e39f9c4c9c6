"""Operations element by element; operands broadcast, and gradients are summed back to their shapes."""

from __future__ import annotations

import math

import numpy as np

from tensorstash.reference.autograd.graph import Meta
from tensorstash.reference.autograd.primitive import Operand, primitive
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


@primitive(a=lambda g, b: g * b, b=lambda g, a: g * a)
def mul(a: Array, b: Array) -> Array:
    """The product of two."""
    return np.multiply(a, b)


@primitive(floating=True, a=lambda g, b: g / b, b=lambda g, a, b: -g * (a / (b * b)))
def div(a: Array, b: Array) -> Array:
    """The quotient of two; integers divide as float32."""
    return np.true_divide(a, b)


@primitive(a=lambda g: -g)
def neg(a: Array) -> Array:
    """The value with the other sign."""
    return np.negative(a)


def _base_gradient(g: Tensor, base: Tensor, exponent: Operand) -> Tensor:
    if isinstance(exponent, Tensor):
        raise NotImplementedError("the gradient of a power whose exponent is a tensor; use a number")
    return g * 0 if exponent == 0 else g * (base ** (exponent - 1) * exponent)


def _exponent_gradient(g: Tensor) -> Tensor:
    raise NotImplementedError("the gradient of an exponent; use a number")


@primitive(base=_base_gradient, exponent=_exponent_gradient)
def power(base: Array, exponent: Array) -> Array:
    """`base` raised to `exponent`; differentiable where `exponent` is a number."""
    return np.asarray(np.power(base, exponent))


@primitive(floating=True, x=lambda g, out: g * out)
def exp(x: Array) -> Array:
    """The exponential."""
    return np.exp(x)


@primitive(floating=True, x=lambda g, out: g * (1 - out * out))
def tanh(x: Array) -> Array:
    """The hyperbolic tangent."""
    return np.tanh(x)


@primitive(floating=True, x=lambda g, out: g * (out * (1 - out)))
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


@primitive()
def gt(a: Array, b: Array) -> Array:
    """Whether `a` is greater."""
    return np.greater(a, b)


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


def astype(x: Tensor, dtype: DTypeLike) -> Tensor:
    """Give the tensor in another element type, itself where it has it already."""
    kind = as_dtype(dtype)
    return x if x.dtype is kind else cast(x, dtype=kind)


def to(x: Tensor, device: str, *, copy: bool = False) -> Tensor:
    """Give the tensor on a device, itself where it is there already, unless `copy`."""
    return x if x.device == device and not copy else copy_to(x, device=device)


def contiguous(x: Tensor) -> Tensor:
    """Give the tensor dense and row-major, itself where it is."""
    return x if x.layout.is_contiguous else pack_contiguous(x)
