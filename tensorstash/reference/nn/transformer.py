"""A decoder-only transformer, small enough to read at once."""

from __future__ import annotations

from typing import Any

from tensorstash.reference import ops
from tensorstash.reference.creation import arange
from tensorstash.reference.nn.layers import GELU, Dropout, Embedding, LayerNorm, Linear, Sequential
from tensorstash.reference.nn.module import Module
from tensorstash.reference.random import Generator
from tensorstash.reference.storage.dtypes import DTypeLike, float32
from tensorstash.reference.tensor import Tensor


class MultiheadAttention(Module):
    """Self-attention of (batch, tokens, features) with one projection for query, key and value."""

    def __init__(
        self, features: int, heads: int, *, causal: bool = True, generator: Generator, dtype: DTypeLike = float32
    ) -> None:
        if features % heads:
            raise ValueError(f"{features} features cannot be shared by {heads} heads")
        self.project = Linear(features, 3 * features, generator=generator, dtype=dtype)
        self.merge = Linear(features, features, generator=generator, dtype=dtype)
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, features = x.shape
        parts = self.project(x).split(features, axis=-1)
        query, key, value = (
            part.reshape(batch, tokens, self.heads, features // self.heads).transpose(1, 2) for part in parts
        )
        mixed = ops.attention(query, key, value, causal=self.causal)
        merged: Tensor = self.merge(mixed.transpose(1, 2).reshape(batch, tokens, features))
        return merged


class TransformerBlock(Module):
    """Attention and a feed-forward layer, each after a normalisation and beside a residual connection."""

    def __init__(
        self, features: int, heads: int, *, dropout: float = 0.0, generator: Generator, dtype: DTypeLike = float32
    ) -> None:
        settings: dict[str, Any] = {"generator": generator, "dtype": dtype}
        self.attention_norm = LayerNorm(features, dtype=dtype)
        self.attention = MultiheadAttention(features, heads, **settings)
        self.feed_norm = LayerNorm(features, dtype=dtype)
        self.feed = Sequential(
            Linear(features, 4 * features, **settings), GELU(), Linear(4 * features, features, **settings)
        )
        self.dropout = Dropout(dropout, generator)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        out: Tensor = x + self.dropout(self.feed(self.feed_norm(x)))
        return out


class TransformerLM(Module):
    """A language model: indices (batch, tokens) to logits (batch, tokens, entries); the output layer is tied."""

    def __init__(
        self, entries: int, tokens: int, features: int, heads: int, blocks: int, *, dropout: float = 0.0,
        generator: Generator, dtype: DTypeLike = float32,
    ) -> None:  # fmt: skip
        self.token = Embedding(entries, features, scale=0.1, generator=generator, dtype=dtype)
        self.position = Embedding(tokens, features, scale=0.1, generator=generator, dtype=dtype)
        self.blocks = [
            TransformerBlock(features, heads, dropout=dropout, generator=generator, dtype=dtype) for _ in range(blocks)
        ]
        self.norm = LayerNorm(features, dtype=dtype)

    def forward(self, indices: Tensor) -> Tensor:
        x = self.token(indices) + self.position(arange(indices.shape[1], device=indices.device))
        for block in self.blocks:
            x = block(x)
        normal: Tensor = self.norm(x)
        return normal @ self.token.weight.swap_last()
