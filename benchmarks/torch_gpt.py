"""A GPT on bytes of text, in PyTorch."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody gives it

from benchmarks.data import Text


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of the model; ``width`` is divisible by ``heads``."""

    vocabulary: int
    context: int
    width: int
    heads: int
    depth: int
    dropout: float = 0.0


class Attention(nn.Module):
    """Causal self-attention over (batch, length, width)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.inputs = nn.Linear(config.width, 3 * config.width)
        self.output = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.inputs(x).chunk(3, dim=-1)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention, then two linear layers on each position; both normalised first and added to their input."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm_linear = nn.LayerNorm(config.width)
        self.linear = nn.Sequential(
            nn.Linear(config.width, 4 * config.width), nn.GELU(), nn.Linear(4 * config.width, config.width)
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm_attention(x)))
        return x + self.dropout(self.linear(self.norm_linear(x)))


class GPT(nn.Module):
    """Predicts the next token at each position: int64 (batch, length) to logits (batch, length, vocabulary)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Parameter(torch.zeros(config.context, config.width))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class TextTask:
    """Next-byte prediction with AdamW."""

    def __init__(self, config: Config, *, batch: int) -> None:
        torch.manual_seed(0)
        self._batch = batch
        self._context = config.context
        self._text = Text()
        self._model = GPT(config)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=3e-3)

    def warm_up(self) -> None:
        self.backward(self._loss(1, 8, seed=0))
        self.update()

    def forward(self, step: int) -> Tensor:
        return self._loss(self._batch, self._context, seed=step + 1)

    def backward(self, loss: Tensor) -> float:
        loss.backward()
        return loss.item()

    def gradients(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        for name, parameter in self._model.named_parameters():
            if parameter.grad is not None:
                yield name, parameter.grad.numpy()

    def update(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=False)

    def _loss(self, size: int, length: int, seed: int) -> Tensor:
        inputs, targets = map(torch.from_numpy, self._text.batch(size, length, seed))
        return F.cross_entropy(self._model(inputs).flatten(0, 1), targets.flatten())


def build(*, quick: bool) -> TextTask:
    """Return the task; about 300 MiB of activations in full size."""
    if quick:
        return TextTask(Config(Text.vocabulary, context=64, width=64, heads=4, depth=2), batch=16)
    return TextTask(Config(Text.vocabulary, context=128, width=192, heads=6, depth=6), batch=32)
