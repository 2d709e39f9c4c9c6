"""A GPT on bytes of text, in PaddlePaddle; its attention is written by hand, with split and transpose."""

import paddle
from paddle import Tensor, nn
from paddle.distributed.fleet.utils import recompute as recomputed
from paddle.nn import functional as F  # noqa: N812 - the name everybody gives it

from benchmarks.models import Model


class Attention(nn.Layer):
    """Causal self-attention over (batch, length, width)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.heads = model.heads
        self.inputs = nn.Linear(model.width, 3 * model.width)
        self.output = nn.Linear(model.width, model.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part.reshape([batch, length, self.heads, -1]).transpose([0, 2, 1, 3])
            for part in self.inputs(x).split(3, -1)
        )
        scores = query @ key.transpose([0, 1, 3, 2]) / query.shape[-1] ** 0.5
        future = paddle.triu(paddle.full([length, length], -1e9), 1)
        mixed = F.softmax(scores + future, -1) @ value
        return self.output(mixed.transpose([0, 2, 1, 3]).reshape([batch, length, width]))


class Block(nn.Layer):
    """Attention, then two linear layers on each position; both normalised first and added to their input."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.recompute = model.recompute
        self.norm_attention = nn.LayerNorm(model.width)
        self.attention = Attention(model)
        self.norm_linear = nn.LayerNorm(model.width)
        self.linear = nn.Sequential(
            nn.Linear(model.width, 4 * model.width), nn.GELU(), nn.Linear(4 * model.width, model.width)
        )

    def forward(self, x: Tensor) -> Tensor:
        return recomputed(self.body, x) if self.recompute else self.body(x)

    def body(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_attention(x))
        return x + self.linear(self.norm_linear(x))


class GPT(nn.Layer):
    """Predicts the next token at each position."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.tokens = nn.Embedding(model.vocabulary, model.width)
        self.positions = nn.Embedding(model.context, model.width)
        self.blocks = nn.LayerList([Block(model) for _ in range(model.depth)])
        self.norm = nn.LayerNorm(model.width)
        self.head = nn.Linear(model.width, model.vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(paddle.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
