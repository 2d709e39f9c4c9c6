"""Trainings in PyTorch."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name everybody gives it

from benchmarks.models import Model
from benchmarks.models.torch_gpt import GPT
from benchmarks.models.torch_resnet import ResNet
from benchmarks.models.training import Training

NETWORKS = {"gpt": GPT, "resnet": ResNet}
OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


class TorchTraining(Training):
    """A network that learns."""

    _no_grad = torch.no_grad

    def __init__(self, model: Model) -> None:
        if model.threads is not None:
            torch.set_num_threads(model.threads)
        torch.manual_seed(model.seed)
        self._dtype = getattr(torch, model.dtype)
        network = NETWORKS[model.network](model).to(self._dtype)
        super().__init__(model, network, OPTIMIZERS[model.optimizer](network.parameters(), lr=model.rate))

    def forward(self, step: int, *, small: bool = False) -> Tensor:
        torch.manual_seed(step)  # of dropout
        return super().forward(step, small=small)

    def update(self, rate: float | None = None) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = group["lr"] if rate is None else rate
        self._optimizer.step()
        self.clear()

    def clear(self) -> None:
        self._optimizer.zero_grad(set_to_none=False)

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.float(), targets)

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor

    def _array(self, gradient: Tensor) -> NDArray[np.float32]:
        return gradient.float().numpy()
