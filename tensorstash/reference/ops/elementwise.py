"""Operations element by element; operands broadcast, and gradients are summed back to their shapes."""

from __future__ import annotations

import math

import numpy as np

from tensorstash.reference.autograd.graph import Meta
from tensorstash.reference.autograd.primitive import Operand, Primitive, primitive
from tensorstash.reference.storage.dtypes import Array, DTypeLike, as_dtype
from tensorstash.reference.storage.memory import dense_copy
from tensorstash.reference.tensor import Tensor

_GELU_SCALE = math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715


def _base_gradient(g: Tensor, base: Tensor, exponent: Operand) -> Tensor:
    if isinstance(exponent, Tensor):
        raise NotImplementedError("the gradient of a power whose exponent is a tensor; use a number")
    return g * 0 if exponent == 0 else g * (base ** (exponent - 1) * exponent)


def _exponent_gradient(g: Tensor) -> Tensor:
    raise NotImplementedError("the gradient of an exponent; use a number")


def _gelu_gradient(g: Tensor, x: Tensor) -> Tensor:
    t = tanh((x + x * x * x * _GELU_CUBIC) * _GELU_SCALE)
    inner = (x * x * (3 * _GELU_CUBIC) + 1) * _GELU_SCALE
    return g * ((t + 1) * 0.5 + x * (1 - t * t) * inner * 0.5)


def _gelu(x: Array) -> Array:
    # The tanh form of Hendrycks and Gimpel, arXiv:1606.08415.
    return np.asarray(0.5 * x * (1 + np.tanh(_GELU_SCALE * (x + _GELU_CUBIC * x * x * x))))


add = Primitive("add", lambda a, b: np.add(a, b), a=lambda g: g, b=lambda g: g)
sub = Primitive("sub", lambda a, b: np.subtract(a, b), a=lambda g: g, b=lambda g: -g)
mul = Primitive("mul", lambda a, b: np.multiply(a, b), a=lambda g, b: g * b, b=lambda g, a: g * a)
div = Primitive(
    "div", lambda a, b: np.true_divide(a, b), floating=True, a=lambda g, b: g / b, b=lambda g, a, b: -g * (a / (b * b))
)
neg = Primitive("neg", lambda a: np.negative(a), a=lambda g: -g)
power = Primitive(
    "power", lambda base, exponent: np.power(base, exponent), base=_base_gradient, exponent=_exponent_gradient
)
exp = Primitive("exp", lambda x: np.exp(x), floating=True, x=lambda g, out: g * out)
tanh = Primitive("tanh", lambda x: np.tanh(x), floating=True, x=lambda g, out: g * (1 - out * out))
sigmoid = Primitive("sigmoid", lambda x: 1 / (1 + np.exp(-x)), floating=True, x=lambda g, out: g * (out * (1 - out)))
relu = Primitive("relu", lambda x: np.maximum(x, 0), x=lambda g, out: g * (out > 0).astype(g.dtype))
gelu = Primitive("gelu", _gelu, floating=True, x=_gelu_gradient)
gt = Primitive("gt", lambda a, b: np.greater(a, b))
clone = Primitive("clone", lambda x: dense_copy(x), moves=True, x=lambda g: g)
pack_contiguous = Primitive("pack_contiguous", lambda x: np.array(x, order="C"), moves=True, x=lambda g: g)


@primitive(x=lambda g, x_meta: astype(g, x_meta.dtype))
def cast(x: Array, *, dtype: DTypeLike) -> Array:
    """The same value in another element type."""
    return x


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
