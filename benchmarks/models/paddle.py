"""What differs in PaddlePaddle."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.distributed.fleet.utils import recompute
from paddle.nn import functional as F  # noqa: N812 - the name everybody gives it


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.swapaxes(-1, -2) / query.shape[-1] ** 0.5
    future = paddle.triu(paddle.full(scores.shape[-2:], -1e9), 1)
    return F.softmax(scores + future, -1) @ value


Module, norm, checkpoint = nn.Layer, nn.BatchNorm2D, recompute
convolution = partial(nn.Conv2D, kernel_size=3, padding=1)
unbiased = {"bias_attr": False}
seed, tensor, no_grad = paddle.seed, paddle.to_tensor, paddle.no_grad


def zeros(*shape: int) -> Tensor:
    return paddle.create_parameter(shape, "float32", default_initializer=nn.initializer.Constant(0.0))


def optimizer(name: str, rate: float, parameters: Iterable[Tensor]) -> Any:
    return getattr(paddle.optimizer, name)(rate, parameters=parameters)


def set_rate(optimizer: Any, rate: float) -> None:
    optimizer.set_lr(rate)


def clear(optimizer: Any) -> None:
    optimizer.clear_grad(set_to_zero=True)
