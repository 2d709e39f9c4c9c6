"""A residual network on handwritten digits, in PaddlePaddle; each stage has twice the channels of the one before."""

from paddle import Tensor, nn
from paddle.distributed.fleet.utils import recompute as recomputed
from paddle.nn import functional as F  # noqa: N812 - the name everybody gives it

from benchmarks.models import Model
from benchmarks.models.data import Digits


def convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Layer:
    """Return a 3 by 3 convolution with batch normalisation."""
    return nn.Sequential(
        nn.Conv2D(inputs, outputs, 3, stride=stride, padding=1, bias_attr=False), nn.BatchNorm2D(outputs)
    )


class Block(nn.Layer):
    """Two convolutions, added to their input."""

    def __init__(self, channels: int, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.first = convolution(channels, channels)
        self.second = convolution(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        return recomputed(self.added, x) if self.recompute else self.added(x)

    def added(self, x: Tensor) -> Tensor:
        return F.relu(x + self.second(F.relu(self.first(x))))


class ResNet(nn.Layer):
    """Classifies (batch, 1, height, width) into logits (batch, classes); each stage halves height and width."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        channels = [model.width * 2**stage for stage in range(model.stages)]
        layers: list[nn.Layer] = []
        for stage, (inputs, outputs) in enumerate(zip([1, *channels], channels, strict=False)):
            layers += [convolution(inputs, outputs, stride=2 if stage else 1), nn.ReLU()]
            layers += [Block(outputs, model.recompute) for _ in range(model.depth)]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(channels[-1], Digits.classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).mean(axis=[2, 3]))
