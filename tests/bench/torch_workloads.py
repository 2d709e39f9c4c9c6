"""The PyTorch workloads of whole_step.py: GPT with and without dropout, and a deep narrow ResNet."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody gives it
from torch.utils.checkpoint import checkpoint

from benchmarks.data import Text
from benchmarks.torch_gpt import GPT, Config

Step = Callable[[int, Any], None]


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


def build(
    workload: str, *, recompute: bool, threads: int
) -> tuple[Step, Callable[[], None], Callable[[], Iterator[Any]]]:
    """Return a step, a tiny step that brings everything but activations into memory, and the gradients."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model, batch = (_resnet if workload == "resnet" else _gpt)(workload, recompute)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def forward_backward(scope: Any, seed: int, small: bool) -> None:
        inputs, targets = batch(seed, small)
        with scope:
            loss = F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
        loss.backward()

    def step(number: int, scope: Any) -> None:
        optimizer.zero_grad(set_to_none=False)
        torch.manual_seed(number)
        forward_backward(scope, number, small=False)
        if number:  # the first step's gradients are compared
            optimizer.step()

    def floor_step() -> None:
        from contextlib import nullcontext

        buffers = [buffer.clone() for buffer in model.buffers()]
        parameters = [parameter.detach().clone() for parameter in model.parameters()]
        forward_backward(nullcontext(), 0, small=True)
        optimizer.step()
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), parameters, strict=True):
                parameter.copy_(value)
            for buffer, value in zip(model.buffers(), buffers, strict=True):
                buffer.copy_(value)

    def gradients() -> Iterator[Any]:
        return (parameter.grad.numpy() for parameter in model.parameters() if parameter.grad is not None)

    return step, floor_step, gradients


def _gpt(workload: str, recompute: bool) -> tuple[nn.Module, Callable[[int, bool], tuple[Tensor, Tensor]]]:
    eager = workload == "gpt_dropout"
    config = Config(Text.vocabulary, context=256, width=384, heads=6, depth=6, dropout=0.1 if eager else 0.0)
    model = GPT(config)
    if eager:
        for block in model.blocks:
            block.attention = EagerAttention(config)
    if recompute:
        model.blocks = nn.ModuleList(RecomputedBlock(block) for block in model.blocks)
    text = Text()

    def batch(seed: int, small: bool) -> tuple[Tensor, Tensor]:
        inputs, targets = text.batch(1 if small else 16, 8 if small else 256, seed)
        return torch.from_numpy(inputs), torch.from_numpy(targets)

    return model, batch


def _resnet(workload: str, recompute: bool) -> tuple[nn.Module, Callable[[int, bool], tuple[Tensor, Tensor]]]:
    from sklearn.datasets import load_digits

    width, depth = 16, 40
    blocks = [Residual(width) for _ in range(depth)]
    body = [RecomputedBlock(block) for block in blocks] if recompute else blocks
    model = nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)
    )
    digits = load_digits()
    images = np.kron(digits.images.astype(np.float32) / 16, np.ones((1, 4, 4), np.float32))[:, None]

    def batch(seed: int, small: bool) -> tuple[Tensor, Tensor]:
        chosen = np.random.default_rng(seed).integers(0, len(images), 2 if small else 64)
        return torch.from_numpy(images[chosen]), torch.from_numpy(digits.target[chosen])

    return model, batch
