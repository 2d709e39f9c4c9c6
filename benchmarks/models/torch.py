"""What differs in PyTorch."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody gives it
from torch.utils.checkpoint import checkpoint as checkpointed

Module, norm = nn.Module, nn.BatchNorm2d
attention = partial(F.scaled_dot_product_attention, is_causal=True)
convolution = partial(nn.Conv2d, kernel_size=3, padding=1)
unbiased = {"bias": False}
checkpoint = partial(checkpointed, use_reentrant=False)
seed, tensor, no_grad = torch.manual_seed, torch.from_numpy, torch.no_grad


def zeros(*shape: int) -> Tensor:
    return nn.Parameter(torch.zeros(shape))


def optimizer(name: str, rate: float, parameters: Iterable[Tensor]) -> Any:
    return getattr(torch.optim, name)(parameters, lr=rate)


def set_rate(optimizer: Any, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def clear(optimizer: Any) -> None:
    optimizer.zero_grad(set_to_none=False)
