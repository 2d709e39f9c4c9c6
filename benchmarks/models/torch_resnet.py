"""A deep, narrow residual network on handwritten digits, in PyTorch."""

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody gives it
from torch.utils.checkpoint import checkpoint

from benchmarks.models import Model
from benchmarks.models.data import Digits


class Residual(nn.Module):
    """Two convolutions with batch normalisation, added to their input."""

    def __init__(self, width: int, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.added, x, use_reentrant=False) if self.recompute else self.added(x)

    def added(self, x: Tensor) -> Tensor:
        return F.relu(x + self.body(x))


class ResNet(nn.Sequential):
    """Classifies (batch, 1, height, width) into logits (batch, classes)."""

    def __init__(self, model: Model) -> None:
        layers: list[nn.Module] = [nn.Conv2d(1, model.width, 3, padding=1)]
        for stage in range(model.stages):
            layers += [nn.MaxPool2d(2)] if stage else []
            layers += [Residual(model.width, model.recompute) for _ in range(model.depth)]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(model.width, Digits.classes)]
        super().__init__(*layers)
