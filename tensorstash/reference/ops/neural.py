"""The operations of neural networks, as functions of tensors."""

from __future__ import annotations

import math

import numpy as np

from tensorstash.reference.autograd.graph import Meta
from tensorstash.reference.autograd.modes import no_grad
from tensorstash.reference.autograd.primitive import primitive
from tensorstash.reference.creation import arange, tensor
from tensorstash.reference.ops.elementwise import sqrt, where
from tensorstash.reference.ops.reduction import reduce_mean, reduce_sum, variance
from tensorstash.reference.random import Generator
from tensorstash.reference.storage.dtypes import Array
from tensorstash.reference.storage.layout import Shape
from tensorstash.reference.tensor import Tensor


@primitive(floating=True, x=lambda g, out, axis: out * (g - reduce_sum(g * out, axis, keepdims=True)))
def softmax(x: Array, *, axis: int = -1) -> Array:
    """Exponentials along `axis`, scaled to sum 1."""
    powers = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return np.asarray(powers / np.sum(powers, axis=axis, keepdims=True))


@primitive(floating=True, x=lambda g, out, axis: g - out.exp() * reduce_sum(g, axis, keepdims=True))
def log_softmax(x: Array, *, axis: int = -1) -> Array:
    """The logarithm of softmax, without overflow."""
    shifted = x - np.max(x, axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True)))


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Give the mean negative log-probability of the labels.

    Args:
        logits: (..., classes).
        labels: (...) integer class of each row, on the device of `logits`.
    """
    rows = log_softmax(logits.reshape(-1, logits.shape[-1]))
    picked = rows[arange(rows.shape[0], device=rows.device), labels.reshape(-1)]
    return -reduce_mean(picked)


def embedding(weight: Tensor, indices: Tensor) -> Tensor:
    """Give the rows of `weight` (entries, features) that `indices` (...) name, as (..., features)."""
    return weight[indices]


def _normalise_gradient(g: Tensor, x: Tensor, axes: Shape, eps: float) -> Tensor:
    scale = 1 / sqrt(variance(x, axes, keepdims=True) + eps)
    normal = (x - reduce_mean(x, axes, keepdims=True)) * scale
    return scale * (g - reduce_mean(g, axes, keepdims=True) - normal * reduce_mean(g * normal, axes, keepdims=True))


@primitive(floating=True, x=_normalise_gradient)
def normalise(x: Array, *, axes: Shape, eps: float = 1e-5) -> Array:
    """`x` shifted and scaled to mean 0 and variance 1 along `axes`."""
    centred = x - np.mean(x, axis=axes, keepdims=True)
    return np.asarray(centred / np.sqrt(np.mean(centred * centred, axis=axes, keepdims=True) + eps))


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Normalise the last dimension, then scale and shift (Ba et al., arXiv:1607.06450)."""
    return normalise(x, axes=(x.ndim - 1,), eps=eps) * weight + bias


def batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_variance: Tensor,
    *,
    training: bool,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each channel of (batch, channels, ...), then scale and shift (Ioffe and Szegedy, arXiv:1502.03167).

    In training the statistics are those of the batch, and the running ones move by `momentum` in place; the running
    variance is the unbiased one.
    """
    channel = (1, -1) + (1,) * (x.ndim - 2)
    if training:
        axes = tuple(axis for axis in range(x.ndim) if axis != 1)
        with no_grad():
            count = x.numel // x.shape[1]
            unbiased = variance(x, axes) * (count / max(count - 1, 1))
            running_mean.mul_(1 - momentum).add_(reduce_mean(x, axes) * momentum)
            running_variance.mul_(1 - momentum).add_(unbiased * momentum)
        normal = normalise(x, axes=axes, eps=eps)
    else:
        normal = (x - running_mean.reshape(*channel)) / sqrt(running_variance.reshape(*channel) + eps)
    return normal * weight.reshape(*channel) + bias.reshape(*channel)


def _mask_gradient(g: Tensor, mask: Tensor, scale: float) -> Tensor:
    return apply_mask(g, mask, scale=scale)


@primitive(x=_mask_gradient)
def apply_mask(x: Array, mask: Array, *, scale: float) -> Array:
    """`x` times `scale` where `mask` holds, else 0."""
    return np.asarray(np.where(mask, x, 0) * np.asarray(scale, x.dtype))


def dropout(x: Tensor, p: float, generator: Generator) -> Tensor:
    """Zero each element with probability `p` and scale the rest by 1 / (1 - p); saves one byte per element."""
    mask = generator.bernoulli(x.shape, 1 - p, device=x.device)
    return apply_mask(x, mask, scale=1 / (1 - p) if p < 1 else 0.0)


def _windows(shape: Shape, size: int, stride: int, padding: int) -> tuple[int, int]:
    height, width = ((n + 2 * padding - size) // stride + 1 for n in shape[2:])
    return height, width


def _fold_back(g: Tensor, x_meta: Meta, size: int, stride: int, padding: int) -> Tensor:
    return fold(g, shape=x_meta.shape, size=size, stride=stride, padding=padding)


@primitive(x=_fold_back)
def unfold(x: Array, *, size: int, stride: int, padding: int) -> Array:
    """Square windows of (batch, channels, height, width) as (batch, channels, size * size, positions)."""
    height, width = _windows(x.shape, size, stride, padding)
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size), (2, 3))[:, :, ::stride, ::stride]
    columns = windows.transpose(0, 1, 4, 5, 2, 3)
    return np.ascontiguousarray(columns).reshape(*x.shape[:2], size * size, height * width)


@primitive(x=lambda g, size, stride, padding: unfold(g, size=size, stride=stride, padding=padding))
def fold(x: Array, *, shape: Shape, size: int, stride: int, padding: int) -> Array:
    """Sum windows back to where `unfold` took them from: its transpose."""
    height, width = _windows(shape, size, stride, padding)
    windows = x.reshape(*shape[:2], size, size, height, width)
    padded = np.zeros((*shape[:2], shape[2] + 2 * padding, shape[3] + 2 * padding), x.dtype)
    for row in range(size):
        for column in range(size):
            rows = slice(row, row + stride * height, stride)
            columns = slice(column, column + stride * width, stride)
            padded[:, :, rows, columns] += windows[:, :, row, column]
    return np.ascontiguousarray(padded[:, :, padding : padding + shape[2], padding : padding + shape[3]])


def _conv_input_gradient(g: Tensor, weight: Tensor, x_meta: Meta, stride: int, padding: int) -> Tensor:
    filters, channels, size, _ = weight.shape
    flat = weight.reshape(filters, channels * size * size)
    columns = flat.swap_last() @ g.reshape(g.shape[0], filters, -1)
    windows = columns.reshape(g.shape[0], channels, size * size, -1)
    return fold(windows, shape=x_meta.shape, size=size, stride=stride, padding=padding)


def _conv_weight_gradient(g: Tensor, x: Tensor, weight_meta: Meta, stride: int, padding: int) -> Tensor:
    filters, channels, size, _ = weight_meta.shape
    windows = unfold(x, size=size, stride=stride, padding=padding)
    columns = windows.reshape(x.shape[0], channels * size * size, -1)
    return (g.reshape(g.shape[0], filters, -1) @ columns.swap_last()).sum(0).reshape(*weight_meta.shape)


@primitive(x=_conv_input_gradient, weight=_conv_weight_gradient)
def convolve(x: Array, weight: Array, *, stride: int, padding: int) -> Array:
    """The correlation of images with square filters."""
    filters, channels, size, _ = weight.shape
    height, width = _windows(x.shape, size, stride, padding)
    columns = unfold.kernel(x, size=size, stride=stride, padding=padding).reshape(len(x), channels * size * size, -1)
    return np.asarray((weight.reshape(filters, -1) @ columns).reshape(len(x), filters, height, width))


def conv2d(x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int = 1, padding: int = 0) -> Tensor:
    """Correlate images with square filters.

    Args:
        x: (batch, channels, height, width).
        weight: (filters, channels, size, size).
        bias: (filters,) or None.
        stride: step between windows.
        padding: zeros around the image.

    Raises:
        ValueError: the filter is not square or has other channels than the image.
    """
    if weight.ndim != 4 or weight.shape[2] != weight.shape[3] or weight.shape[1] != x.shape[1]:
        raise ValueError(f"conv2d of {x.shape} needs filters of shape (n, {x.shape[1]}, k, k), got {weight.shape}")
    out = convolve(x, weight, stride=stride, padding=padding)
    return out if bias is None else out + bias.reshape(1, -1, 1, 1)


def max_pool2d(x: Tensor, size: int) -> Tensor:
    """Give the largest of each of the square windows of `size` that tile (batch, channels, height, width)."""
    return _pooled(unfold(x, size=size, stride=size, padding=0).max(2), x, size)


def avg_pool2d(x: Tensor, size: int) -> Tensor:
    """Give the mean of each of the square windows of `size` that tile (batch, channels, height, width)."""
    return _pooled(unfold(x, size=size, stride=size, padding=0).mean(2), x, size)


def _pooled(flat: Tensor, x: Tensor, size: int) -> Tensor:
    return flat.reshape(*x.shape[:2], *_windows(x.shape, size, size, 0))


def attention(query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> Tensor:
    """Give scaled dot-product attention of (..., tokens, features) (Vaswani et al., arXiv:1706.03762)."""
    scores = query @ key.swap_last() / math.sqrt(query.shape[-1])
    if causal:
        future = tensor(np.triu(np.ones(scores.shape[-2:], bool), k=1), device=query.device)
        scores = where(future, -math.inf, scores)
    return softmax(scores) @ value
