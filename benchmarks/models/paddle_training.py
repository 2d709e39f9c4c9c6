"""Trainings in PaddlePaddle."""

from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor
from paddle.nn import functional as F  # noqa: N812 - the name everybody gives it

from benchmarks.models import Model
from benchmarks.models.paddle_gpt import GPT
from benchmarks.models.paddle_resnet import ResNet
from benchmarks.models.training import Training

NETWORKS = {"gpt": GPT, "resnet": ResNet}
OPTIMIZERS = {
    "adam": paddle.optimizer.Adam,
    "adamw": paddle.optimizer.AdamW,
    "momentum": paddle.optimizer.Momentum,
}


class PaddleTraining(Training):
    """A network that learns, in float32."""

    def __init__(self, model: Model) -> None:
        paddle.seed(model.seed)
        network = NETWORKS[model.network](model)
        super().__init__(model, network, OPTIMIZERS[model.optimizer](model.rate, parameters=network.parameters()))

    @paddle.no_grad()
    def evaluate(self, batches: int) -> tuple[float, float]:
        return super().evaluate(batches)

    def update(self, rate: float | None = None) -> None:
        if rate is not None:
            self._optimizer.set_lr(rate)
        self._optimizer.step()
        self.clear()

    def clear(self) -> None:
        self._optimizer.clear_grad(set_to_zero=True)

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets)

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return paddle.to_tensor(array)

    def _array(self, gradient: Tensor) -> NDArray[np.float32]:
        return gradient.numpy()
