"""The Paddle workload of whole_step.py: a GPT whose attention is written by hand, with split and transpose."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.distributed.fleet.utils import recompute as recomputed
from paddle.nn import functional as F  # noqa: N812 - the name everybody gives it

from benchmarks.data import Text

WIDTH, HEADS, DEPTH, CONTEXT = 384, 6, 6, 256


class Attention(nn.Layer):
    """Causal self-attention over (batch, length, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = nn.Linear(WIDTH, 3 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        query, key, value = (
            part.reshape([batch, length, HEADS, -1]).transpose([0, 2, 1, 3]) for part in self.inputs(x).split(3, -1)
        )
        scores = query @ key.transpose([0, 1, 3, 2]) / query.shape[-1] ** 0.5
        future = paddle.triu(paddle.full([length, length], -1e9), 1)
        mixed = F.softmax(scores + future, -1) @ value
        return self.output(mixed.transpose([0, 2, 1, 3]).reshape([batch, length, WIDTH]))


class Block(nn.Layer):
    """Attention, then two linear layers on each position; both normalised first and added to their input."""

    def __init__(self, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.norm_attention = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.norm_linear = nn.LayerNorm(WIDTH)
        self.linear = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return recomputed(self.body, x) if self.recompute else self.body(x)

    def body(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_attention(x))
        return x + self.linear(self.norm_linear(x))


class GPT(nn.Layer):
    """Predicts the next token at each position."""

    def __init__(self, recompute: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(Text.vocabulary, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.LayerList([Block(recompute) for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, Text.vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(paddle.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build(
    workload: str, *, recompute: bool, threads: int
) -> tuple[Callable[[int, Any], None], Callable[[], None], Callable[[], Iterator[Any]]]:
    """Return a step, a tiny step that brings everything but activations into memory, and the gradients."""
    del workload, threads
    paddle.seed(0)
    model = GPT(recompute)
    optimizer = paddle.optimizer.AdamW(1e-4, parameters=model.parameters())
    text = Text()

    def forward_backward(scope: Any, seed: int, small: bool) -> None:
        inputs, targets = map(paddle.to_tensor, text.batch(1 if small else 16, 8 if small else CONTEXT, seed))
        with scope:
            loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()

    def step(number: int, scope: Any) -> None:
        optimizer.clear_grad(set_to_zero=True)
        forward_backward(scope, number, small=False)
        if number:  # the first step's gradients are compared
            optimizer.step()

    def floor_step() -> None:
        values = [parameter.numpy() for parameter in model.parameters()]
        forward_backward(nullcontext(), 0, small=True)
        optimizer.step()
        for parameter, value in zip(model.parameters(), values, strict=True):
            parameter.set_value(value)

    def gradients() -> Iterator[Any]:
        return (parameter.grad.numpy() for parameter in model.parameters() if parameter.grad is not None)

    return step, floor_step, gradients
