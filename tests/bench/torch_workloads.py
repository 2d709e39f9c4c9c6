"""The PyTorch workloads of steps.py: GPT with and without dropout, and a deep narrow ResNet."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from numpy.typing import NDArray
from steps import RECOMPUTE, Variant
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody gives it
from torch.utils.checkpoint import checkpoint

from benchmarks.data import Digits, Text
from benchmarks.torch_gpt import GPT, Config

Batch = Callable[[int, bool], tuple[Tensor, Tensor]]


class EagerAttention(nn.Module):
    """Attention whose probabilities are kept for backward, with dropout on them."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.inputs = nn.Linear(config.width, 3 * config.width)
        self.output = nn.Linear(config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.inputs(x).chunk(3, dim=-1)
        )
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = self.dropout(scores.masked_fill(future, -torch.inf).softmax(-1))
        return self.output((weights @ value).transpose(1, 2).flatten(2))


class RecomputedBlock(nn.Module):
    """A block whose activations are computed again in backward."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.block, x, use_reentrant=False)


class Residual(nn.Module):
    """Two convolutions with batch normalisation, added to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.body(x))


def resnet(width: int, depth: int, around: Callable[[nn.Module], nn.Module] = lambda block: block) -> nn.Sequential:
    """Return a classifier of digits, (batch, 1, height, width) to (batch, classes), with each block inside another."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        *(around(Residual(width)) for _ in range(depth)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, Digits.classes),
    )


class TorchWorkload:
    """A model that learns; every step sees the same numbers in every process."""

    def __init__(self, variant: Variant, *, tiny: bool) -> None:
        torch.set_num_threads(variant.threads)
        torch.manual_seed(0)
        build = _resnet if variant.workload == "resnet" else _gpt
        model, self._batch = build(variant, tiny)
        self._dtype = getattr(torch, variant.dtype)
        self._model = model.to(self._dtype)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4)

    def step(self, number: int, scope: Any) -> None:
        """Train on one batch, with forward under ``scope``; gradients stay until the next step."""
        self._optimizer.zero_grad(set_to_none=False)
        torch.manual_seed(number)
        self._forward_backward(scope, number, small=False)
        self._optimizer.step()

    def floor_step(self) -> None:
        """Bring everything but activations into memory, and leave the model as it was."""
        state = {name: value.clone() for name, value in self._model.state_dict().items()}
        self._forward_backward(nullcontext(), 0, small=True)
        self._optimizer.step()
        self._model.load_state_dict(state)

    def gradients(self) -> Iterator[NDArray[Any]]:
        for parameter in self._model.parameters():
            if parameter.grad is not None:
                yield parameter.grad.view(torch.uint8).numpy()

    def _forward_backward(self, scope: Any, seed: int, small: bool) -> None:
        inputs, targets = self._batch(seed, small)
        inputs = inputs.to(self._dtype) if inputs.is_floating_point() else inputs
        with scope:
            loss = F.cross_entropy(self._model(inputs).flatten(0, -2).float(), targets.flatten())
        loss.backward()


def _gpt(variant: Variant, tiny: bool) -> tuple[nn.Module, Batch]:
    eager = variant.workload == "gpt_dropout"
    dropout = 0.1 if eager else 0.0
    if tiny:
        config = Config(Text.vocabulary, context=32, width=32, heads=2, depth=2, dropout=dropout)
    else:
        config = Config(Text.vocabulary, context=256, width=384, heads=6, depth=6, dropout=dropout)
    model = GPT(config)
    if eager:
        for block in model.blocks:
            block.attention = EagerAttention(config)
    if variant.method == RECOMPUTE:
        model.blocks = nn.ModuleList(map(RecomputedBlock, model.blocks))
    text, size = Text(), 2 if tiny else 16

    def batch(seed: int, small: bool) -> tuple[Tensor, Tensor]:
        inputs, targets = text.batch(1 if small else size, 8 if small else config.context, seed)
        return torch.from_numpy(inputs), torch.from_numpy(targets)

    return model, batch


def _resnet(variant: Variant, tiny: bool) -> tuple[nn.Module, Batch]:
    width, depth, size = (4, 3, 4) if tiny else (16, 40, 64)
    model = resnet(width, depth, RecomputedBlock) if variant.method == RECOMPUTE else resnet(width, depth)
    digits = Digits(4)

    def batch(seed: int, small: bool) -> tuple[Tensor, Tensor]:
        images, labels = digits.batch(2 if small else size, seed)
        return torch.from_numpy(images), torch.from_numpy(labels)

    return model, batch
