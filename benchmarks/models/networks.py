"""The networks, written once for both frameworks: a GPT on bytes of text, a residual network on handwritten digits."""

from functools import cache
from typing import Any

from benchmarks.models import Model


def new(of: Any, kind: type, model: Model) -> Any:
    """Return a network of a kind, or a part of it; ``of`` is our module for its framework, which has what differs."""
    return _kind(kind, of.Module)(of, model)


@cache
def _kind(kind: type, module: type) -> type:
    return type(kind.__name__, (kind, module), {})


class Attention:
    """Causal self-attention over (batch, length, width)."""

    def __init__(self, of: Any, model: Model) -> None:
        super().__init__()
        self.of, self.model = of, model
        self.inputs = of.nn.Linear(model.width, 3 * model.width)
        self.output = of.nn.Linear(model.width, model.width)

    def forward(self, x: Any) -> Any:
        parts = (part.unflatten(-1, (self.model.heads, -1)).swapaxes(1, 2) for part in self.inputs(x).chunk(3, -1))
        return self.output(self.of.attention(*parts).swapaxes(1, 2).flatten(2))


class Block:
    """Attention, then two linear layers on each position; both normalised first and added to their input."""

    def __init__(self, of: Any, model: Model) -> None:
        super().__init__()
        nn, width = of.nn, model.width
        self.norm_attention = nn.LayerNorm(width)
        self.attention = new(of, Attention, model)
        self.norm_linear = nn.LayerNorm(width)
        self.linear = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm_attention(x))
        return x + self.linear(self.norm_linear(x))


class GPT:
    """Predicts the next token at each position: int64 (batch, length) to logits (batch, length, vocabulary)."""

    def __init__(self, of: Any, model: Model) -> None:
        super().__init__()
        self.of, self.recompute = of, model.recompute
        self.tokens = of.nn.Embedding(model.vocabulary, model.width)
        self.positions = of.zeros(model.context, model.width)
        self.blocks = of.nn.Sequential(*(new(of, Block, model) for _ in range(model.depth)))
        self.norm = of.nn.LayerNorm(model.width)
        self.head = of.nn.Linear(model.width, model.vocabulary, **of.unbiased)

    def forward(self, tokens: Any) -> Any:
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = self.of.checkpoint(block, x) if self.recompute else block(x)
        return self.head(self.norm(x))


class Residual:
    """Two convolutions with batch normalisation, added to their input."""

    def __init__(self, of: Any, model: Model) -> None:
        super().__init__()
        self.of, self.recompute, width = of, model.recompute, model.width
        first, second = ((of.convolution(width, width, **of.unbiased), of.norm(width)) for _ in range(2))
        self.body = of.nn.Sequential(*first, of.nn.ReLU(), *second)

    def forward(self, x: Any) -> Any:
        return self.of.checkpoint(self.added, x) if self.recompute else self.added(x)

    def added(self, x: Any) -> Any:
        return self.of.F.relu(x + self.body(x))


class ResNet:
    """Classifies (batch, 1, height, width) into logits (batch, classes)."""

    def __init__(self, of: Any, model: Model) -> None:
        super().__init__()
        blocks = (new(of, Residual, model) for _ in range(model.depth))
        self.body = of.nn.Sequential(of.convolution(1, model.width), *blocks)
        self.head = of.nn.Linear(model.width, 10)

    def forward(self, images: Any) -> Any:
        return self.head(self.body(images).mean((2, 3)))


NETWORKS = {"gpt": GPT, "resnet": ResNet}
