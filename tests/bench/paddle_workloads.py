"""The Paddle workload of steps.py: a GPT whose attention is written by hand, with split and transpose."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import paddle
from numpy.typing import NDArray
from paddle import Tensor, nn
from paddle.distributed.fleet.utils import recompute as recomputed
from paddle.nn import functional as F  # noqa: N812 - the name everybody gives it
from steps import RECOMPUTE, Variant

from benchmarks.data import Text


class Attention(nn.Layer):
    """Causal self-attention over (batch, length, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

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

    def __init__(self, width: int, heads: int, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm_linear = nn.LayerNorm(width)
        self.linear = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        return recomputed(self.body, x) if self.recompute else self.body(x)

    def body(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_attention(x))
        return x + self.linear(self.norm_linear(x))


class GPT(nn.Layer):
    """Predicts the next token at each position."""

    def __init__(self, context: int, width: int, heads: int, depth: int, recompute: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(Text.vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.LayerList([Block(width, heads, recompute) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, Text.vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(paddle.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class PaddleWorkload:
    """A model that learns; every step sees the same numbers in every process."""

    def __init__(self, variant: Variant, *, tiny: bool) -> None:
        paddle.seed(0)
        self._context, width, heads, depth, self._size = (32, 32, 2, 2, 2) if tiny else (256, 384, 6, 6, 12)
        self._model = GPT(self._context, width, heads, depth, variant.method == RECOMPUTE)
        self._optimizer = paddle.optimizer.AdamW(1e-4, parameters=self._model.parameters())
        self._text = Text()

    def step(self, number: int, scope: Any) -> None:
        """Train on one batch, with forward under ``scope``; gradients stay until the next step."""
        self._optimizer.clear_grad(set_to_zero=True)
        self._forward_backward(scope, number, self._size, self._context)
        self._optimizer.step()

    def floor_step(self) -> None:
        """Bring everything but activations into memory, and leave the model as it was."""
        values = [parameter.numpy() for parameter in self._model.parameters()]
        self._forward_backward(nullcontext(), 0, 1, 8)
        self._optimizer.step()
        for parameter, value in zip(self._model.parameters(), values, strict=True):
            parameter.set_value(value)

    def gradients(self) -> Iterator[NDArray[Any]]:
        for parameter in self._model.parameters():
            if parameter.grad is not None:
                yield parameter.grad.numpy()

    def _forward_backward(self, scope: Any, seed: int, size: int, length: int) -> None:
        inputs, targets = map(paddle.to_tensor, self._text.batch(size, length, seed))
        with scope:
            loss = F.cross_entropy(self._model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
