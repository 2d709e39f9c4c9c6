"""Trainings in PyTorch."""

import sys
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody gives it
from torch.utils.checkpoint import checkpoint as checkpointed

from benchmarks.models import Model, training
from benchmarks.models.networks import NETWORKS, new

OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


Module, norm = nn.Module, nn.BatchNorm2d
attention = partial(F.scaled_dot_product_attention, is_causal=True)
convolution = partial(nn.Conv2d, kernel_size=3, padding=1)
unbiased = {"bias": False}
checkpoint = partial(checkpointed, use_reentrant=False)


def zeros(*shape: int) -> Tensor:
    return nn.Parameter(torch.zeros(shape))


class Training(training.Training):
    """A network that learns."""

    _no_grad = torch.no_grad

    def __init__(self, model: Model) -> None:
        if model.threads is not None:
            torch.set_num_threads(model.threads)
        torch.manual_seed(model.seed)
        self._dtype = getattr(torch, model.dtype)
        network = new(sys.modules[__name__], NETWORKS[model.network], model).to(self._dtype)
        super().__init__(model, network, OPTIMIZERS[model.optimizer](network.parameters(), lr=model.rate))

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
