"""Small models of the kinds that people train, steps of training on a device, and policies that move what they save."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import tensorstash as ts
from tensorstash.policies.plan import HookPolicy
from tests.device.chosen import FIRST

Scope = Callable[[], AbstractContextManager[Any]]


class Attention(nn.Module):
    """A block of a transformer: two residual branches, a causal mask, dropout."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.enter, self.leave = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        parts = self.enter(self.before(x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ value
        x = x + self.leave(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.between(x))


class Language(nn.Module):
    """Tokens to the loss of the next one; the embedding is the head, too."""

    def __init__(self, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, width)
        self.blocks = nn.Sequential(*(Attention(width) for _ in range(layers)))

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.blocks(self.tokens(tokens)) @ self.tokens.weight.t()
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


class Images(nn.Module):
    """Convolutions over channels-last images, with batch normalisation and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.inner = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.leave = nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = self.enter(images.contiguous(memory_format=torch.channels_last))
        return self.leave(self.inner(x + 1.0).mean((2, 3))).square().mean()


class Sequences(nn.Module):
    """A recurrent layer over both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 12, bidirectional=True, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0].square().mean()


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "language": (Language, lambda: torch.randint(0, 50, (2, 12))),
    "images": (Images, lambda: torch.randn(2, 3, 8, 8)),
    "sequences": (Sequences, lambda: torch.randn(2, 4, 8)),
}

POLICIES: dict[str, Callable[[Path], HookPolicy]] = {
    "offloaded": lambda folder: ts.CpuOffload(),
    "compressed": lambda folder: ts.Compress(min_ratio=1),
    "spilled": lambda folder: ts.DiskSpill(folder),
    "offloaded and compressed": lambda folder: ts.CpuOffload() | ts.Compress(min_ratio=1),
    "compressed and spilled": lambda folder: ts.Compress(min_ratio=1) | ts.DiskSpill(folder),
}


def made(name: str, device: str = FIRST) -> tuple[nn.Module, Tensor]:
    """Return a model and its input, always the same."""
    build, draw = MODELS[name]
    torch.manual_seed(0)
    model = build().to(device)
    return model, draw().to(device)


def gradients(model: nn.Module, x: Tensor, scope: Scope = nullcontext, steps: int = 1) -> list[bytes]:
    """Return the bits of the losses and gradients of some steps; none of them is left."""
    found = []
    for step in range(steps):
        torch.manual_seed(step)
        with scope():
            loss = model(x)
        loss.backward()
        parameters = [loss.detach(), *(parameter.grad for parameter in model.parameters())]
        found += [part.cpu().numpy().tobytes() for part in parameters if part is not None]
        model.zero_grad(set_to_none=True)
    return found
