"""The Paddle trainings of training_quality.py."""

from contextlib import AbstractContextManager
from typing import Any

import paddle
from learning import HELD_OUT, LEARNT, Sizes
from numpy.typing import NDArray
from paddle import Tensor
from paddle.nn import functional as F  # noqa: N812 - the name everybody gives it
from paddle_workloads import GPT

from benchmarks.data import Digits, Text
from benchmarks.paddle_resnet import ResNet


class PaddleLearner:
    """A model and its optimizer."""

    def __init__(self, network: str, sizes: Sizes, seed: int) -> None:
        paddle.seed(seed)
        if network == "gpt":
            self._model = GPT(sizes.context, sizes.width, heads=4, depth=sizes.depth, recompute=False)
        else:
            self._model = ResNet((sizes.channels, 2 * sizes.channels), sizes.depth // 2, Digits.classes)
        self._sizes = sizes
        self._data = {
            part: Text(part) if network == "gpt" else Digits(sizes.scale, part) for part in (LEARNT, HELD_OUT)
        }
        self._optimizer = paddle.optimizer.Adam(sizes.rate, parameters=self._model.parameters())

    def step(self, seed: int, rate: float, scope: AbstractContextManager[Any]) -> float:
        """Train on one batch, with forward under ``scope``, and return the loss."""
        self._optimizer.clear_grad()
        self._optimizer.set_lr(rate)
        loss = self._backward(seed, scope)
        self._optimizer.step()
        return loss

    def gradients(self, seed: int, scope: AbstractContextManager[Any]) -> dict[str, NDArray[Any]]:
        """Return the gradient of every parameter by name, for one batch, with forward under ``scope``."""
        self._optimizer.clear_grad()
        self._backward(seed, scope)
        named = self._model.named_parameters()
        return {name: parameter.grad.numpy() for name, parameter in named if parameter.grad is not None}

    @paddle.no_grad()
    def evaluate(self, batches: int) -> tuple[float, float]:
        """Return loss and accuracy on data it was not trained on."""
        self._model.eval()
        losses, hits = [], []
        for seed in range(batches):
            logits, targets = self._logits(HELD_OUT, seed)
            losses.append(F.cross_entropy(logits, targets))
            hits.append((logits.argmax(-1) == targets).astype("float32").mean())
        self._model.train()
        return float(paddle.stack(losses).mean()), float(paddle.stack(hits).mean())

    def _backward(self, seed: int, scope: AbstractContextManager[Any]) -> float:
        with scope:
            loss = F.cross_entropy(*self._logits(LEARNT, seed))
        loss.backward()
        return float(loss)

    def _logits(self, part: tuple[float, float], seed: int) -> tuple[Tensor, Tensor]:
        data, sizes = self._data[part], self._sizes
        batch = (
            data.batch(sizes.batch, sizes.context, seed) if isinstance(data, Text) else data.batch(sizes.batch, seed)
        )
        inputs, targets = map(paddle.to_tensor, batch)
        return self._model(inputs).flatten(0, -2), targets.flatten()
