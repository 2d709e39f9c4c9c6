"""A Llama-like model, in PyTorch."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody gives it
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    """Causal attention with rotary positions."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        query, key, value = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(_turned(query, turns), _turned(key, turns), value, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a gated feed-forward network, each behind a norm and beside the residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        hidden = 8 * width // 3 // 64 * 64 or width
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.attention = Attention(width, heads)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.norms[0](x), turns)
        normed = self.norms[1](x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Llama(nn.Module):
    """Token embeddings, blocks and a head; ``recompute`` drops the activations inside of blocks."""

    def __init__(self, vocabulary: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.recompute = False
        self.head_width = width // heads
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        rates = 1e4 ** -(torch.arange(0, self.head_width, 2, device=x.device) / self.head_width)
        angles = torch.arange(tokens.shape[1], device=x.device)[:, None] * rates
        turns = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in self.blocks:
            x = checkpoint(block, x, turns, use_reentrant=False) if self.recompute else block(x, turns)
        return self.head(self.norm(x))


def _turned(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = turns
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cosine - right * sine, left * sine + right * cosine], dim=-1)
