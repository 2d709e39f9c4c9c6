"""A residual convolutional network on handwritten digits, in PaddlePaddle."""

from collections.abc import Iterator

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor, nn
from paddle.nn import functional as F  # noqa: N812 - the name everybody gives it

from benchmarks.data import Digits


def convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Layer:
    """Return a 3 by 3 convolution with batch normalisation."""
    return nn.Sequential(
        nn.Conv2D(inputs, outputs, 3, stride=stride, padding=1, bias_attr=False), nn.BatchNorm2D(outputs)
    )


class Block(nn.Layer):
    """Two convolutions, added to their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = convolution(channels, channels)
        self.second = convolution(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.second(F.relu(self.first(x))))


class ResNet(nn.Layer):
    """Classifies (batch, 1, height, width) into logits (batch, classes); each stage halves height and width.

    Args:
        channels: of each stage.
        depth: residual blocks in each stage.
        classes: number of outputs.
    """

    def __init__(self, channels: tuple[int, ...], depth: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Layer] = []
        for stage, (inputs, outputs) in enumerate(zip((1, *channels), channels, strict=False)):
            layers += [convolution(inputs, outputs, stride=2 if stage else 1), nn.ReLU()]
            layers += [Block(outputs) for _ in range(depth)]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(channels[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).mean(axis=[2, 3]))


class DigitsTask:
    """Classification with momentum."""

    def __init__(self, channels: tuple[int, ...], *, depth: int, scale: int, batch: int) -> None:
        paddle.seed(0)
        self._batch = batch
        self._digits = Digits(scale)
        self._model = ResNet(channels, depth, Digits.classes)
        self._optimizer = paddle.optimizer.Momentum(0.05, parameters=self._model.parameters())

    def warm_up(self) -> None:
        self.backward(self._loss(2, seed=0))
        self.update()

    def forward(self, step: int) -> Tensor:
        return self._loss(self._batch, seed=step + 1)

    def backward(self, loss: Tensor) -> float:
        loss.backward()
        return float(loss)

    def gradients(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        for name, parameter in self._model.named_parameters():
            if parameter.grad is not None:
                yield name, parameter.grad.numpy()

    def update(self) -> None:
        self._optimizer.step()
        self._optimizer.clear_grad(set_to_zero=True)

    def _loss(self, size: int, seed: int) -> Tensor:
        images, labels = map(paddle.to_tensor, self._digits.batch(size, seed))
        return F.cross_entropy(self._model(images), labels)


def build(*, quick: bool) -> DigitsTask:
    """Return the task; about 155 MiB of activations in full size."""
    if quick:
        return DigitsTask((8, 16), depth=1, scale=2, batch=16)
    return DigitsTask((16, 32), depth=3, scale=4, batch=112)
