"""Trainings in PaddlePaddle."""

import sys
from functools import partial

import paddle
from paddle import Tensor, nn
from paddle.distributed.fleet.utils import recompute
from paddle.nn import functional as F  # noqa: N812 - the name everybody gives it

from benchmarks.models import Model, training
from benchmarks.models.networks import NETWORKS, new

OPTIMIZERS = {"adam": paddle.optimizer.Adam, "adamw": paddle.optimizer.AdamW, "momentum": paddle.optimizer.Momentum}


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.swapaxes(-1, -2) / query.shape[-1] ** 0.5
    future = paddle.triu(paddle.full(scores.shape[-2:], -1e9), 1)
    return F.softmax(scores + future, -1) @ value


Module, norm, checkpoint = nn.Layer, nn.BatchNorm2D, recompute
convolution = partial(nn.Conv2D, kernel_size=3, padding=1)
unbiased = {"bias_attr": False}


def zeros(*shape: int) -> Tensor:
    return paddle.create_parameter(shape, "float32", default_initializer=nn.initializer.Constant(0.0))


class Training(training.Training):
    """A network that learns, in float32."""

    _no_grad = paddle.no_grad
    _loss = staticmethod(F.cross_entropy)
    _tensor = staticmethod(paddle.to_tensor)

    def __init__(self, model: Model) -> None:
        paddle.seed(model.seed)
        network = new(sys.modules[__name__], NETWORKS[model.network], model)
        super().__init__(model, network, OPTIMIZERS[model.optimizer](model.rate, parameters=network.parameters()))

    def update(self, rate: float | None = None) -> None:
        if rate is not None:
            self._optimizer.set_lr(rate)
        self._optimizer.step()
        self.clear()

    def clear(self) -> None:
        self._optimizer.clear_grad(set_to_zero=True)
