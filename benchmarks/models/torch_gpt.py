"""A GPT on bytes of text, in PyTorch."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody gives it
from torch.utils.checkpoint import checkpoint

from benchmarks.models import Model


class Attention(nn.Module):
    """Causal self-attention over (batch, length, width)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.heads, self.eager = model.heads, model.eager
        self.inputs = nn.Linear(model.width, 3 * model.width)
        self.output = nn.Linear(model.width, model.width)
        self.dropout = nn.Dropout(model.dropout)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.inputs(x).chunk(3, dim=-1)
        )
        if self.eager:
            scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
            future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            mixed = self.dropout(scores.masked_fill(future, -torch.inf).softmax(-1)) @ value
        else:
            dropout = self.dropout.p if self.training else 0.0
            mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention, then two linear layers on each position; both normalised first and added to their input."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(model.width)
        self.attention = Attention(model)
        self.norm_linear = nn.LayerNorm(model.width)
        self.linear = nn.Sequential(
            nn.Linear(model.width, 4 * model.width), nn.GELU(), nn.Linear(4 * model.width, model.width)
        )
        self.dropout = nn.Dropout(model.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm_attention(x)))
        return x + self.dropout(self.linear(self.norm_linear(x)))


class GPT(nn.Module):
    """Predicts the next token at each position: int64 (batch, length) to logits (batch, length, vocabulary)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.recompute = model.recompute
        self.tokens = nn.Embedding(model.vocabulary, model.width)
        self.positions = nn.Parameter(torch.zeros(model.context, model.width))
        self.blocks = nn.ModuleList(Block(model) for _ in range(model.depth))
        self.norm = nn.LayerNorm(model.width)
        self.head = nn.Linear(model.width, model.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(self.norm(x))
