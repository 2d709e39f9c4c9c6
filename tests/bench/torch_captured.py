"""What real PyTorch models save, once trained a little: a GPT with dropout, short and long, and a residual network."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody gives it
from torch_workloads import EagerAttention, Residual

from benchmarks.data import Text
from benchmarks.torch_gpt import GPT, Config

Saved = tuple[np.ndarray, str]
"""Carrier bits of one storage, and the dtype."""


def capture(model: str, steps: int, scale: int) -> list[Saved]:
    """Return what the step after ``steps`` of training saves, each storage once, without parameters.

    Args:
        model: ``"gpt"``, ``"gpt-long"``, which sees four times as much text at a time, or ``"resnet"``.
        steps: of training.
        scale: of the batch.
    """
    torch.manual_seed(0)
    network, batch = _resnet(scale) if model == "resnet" else _gpt(scale, 1024 if model == "gpt-long" else 256)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    kept = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    saved: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in kept and tensor.numel():
            flat = torch.empty(0, dtype=tensor.dtype).set_(storage)
            saved.setdefault(storage.data_ptr(), tensor.detach() if flat.numel() == tensor.numel() else flat)
        return tensor

    for step in range(steps + 1):
        last = step == steps
        inputs, targets = batch(step)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor) if last else nullcontext():
            loss = F.cross_entropy(network(inputs).flatten(0, -2), targets.flatten())
        if last:
            return [_bits(tensor) for tensor in saved.values()]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    raise AssertionError


def _bits(tensor: Tensor) -> Saved:
    order = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
    dense = tensor.permute(order).contiguous()
    return dense.clone().numpy(), str(tensor.dtype).removeprefix("torch.")


def _gpt(scale: int, context: int) -> tuple[nn.Module, Callable[[int], tuple[Tensor, Tensor]]]:
    config = Config(Text.vocabulary, context=context, width=384, heads=6, depth=2, dropout=0.1)
    model = GPT(config)
    for block in model.blocks:
        block.attention = EagerAttention(config)
    text = Text()

    def batch(seed: int) -> tuple[Tensor, Tensor]:
        inputs, targets = text.batch(max(scale * 256 // context, 1), context, seed)
        return torch.from_numpy(inputs), torch.from_numpy(targets)

    return model, batch


def _resnet(scale: int) -> tuple[nn.Module, Callable[[int], tuple[Tensor, Tensor]]]:
    from sklearn.datasets import load_digits

    body: list[Any] = [nn.Conv2d(1, 16, 3, padding=1), *(Residual(16) for _ in range(3)), nn.MaxPool2d(2)]
    model = nn.Sequential(*body, *(Residual(16) for _ in range(3)), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model.append(nn.Linear(16, 10))
    digits = load_digits()
    images = np.kron(digits.images.astype(np.float32) / 16, np.ones((1, 4, 4), np.float32))[:, None]

    def batch(seed: int) -> tuple[Tensor, Tensor]:
        chosen = np.random.default_rng(seed).integers(0, len(images), 8 * scale)
        return torch.from_numpy(images[chosen]), torch.from_numpy(digits.target[chosen])

    return model, batch
