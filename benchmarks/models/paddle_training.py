"""Trainings in PaddlePaddle."""

import paddle
from paddle.nn import functional as F  # noqa: N812 - the name everybody gives it

from benchmarks.models import Model
from benchmarks.models.paddle_gpt import GPT
from benchmarks.models.paddle_resnet import ResNet
from benchmarks.models.training import Training

NETWORKS = {"gpt": GPT, "resnet": ResNet}
OPTIMIZERS = {"adam": paddle.optimizer.Adam, "adamw": paddle.optimizer.AdamW, "momentum": paddle.optimizer.Momentum}


class PaddleTraining(Training):
    """A network that learns, in float32."""

    _no_grad = paddle.no_grad
    _loss = staticmethod(F.cross_entropy)
    _tensor = staticmethod(paddle.to_tensor)

    def __init__(self, model: Model) -> None:
        paddle.seed(model.seed)
        network = NETWORKS[model.network](model)
        super().__init__(model, network, OPTIMIZERS[model.optimizer](model.rate, parameters=network.parameters()))

    def update(self, rate: float | None = None) -> None:
        if rate is not None:
            self._optimizer.set_lr(rate)
        self._optimizer.step()
        self.clear()

    def clear(self) -> None:
        self._optimizer.clear_grad(set_to_zero=True)
