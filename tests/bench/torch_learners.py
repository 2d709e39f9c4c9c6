"""The PyTorch trainings of training_quality.py."""

from contextlib import AbstractContextManager
from typing import Any

import torch
from learning import HELD_OUT, LEARNT, Sizes
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name everybody gives it
from torch_workloads import resnet

from benchmarks.data import Digits, Text
from benchmarks.torch_gpt import GPT, Config


class TorchLearner:
    """A model and its optimizer."""

    def __init__(self, network: str, sizes: Sizes, seed: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        if network == "gpt":
            self._model = GPT(Config(Text.vocabulary, sizes.context, sizes.width, heads=4, depth=sizes.depth))
        else:
            self._model = resnet(sizes.channels, sizes.depth)
        self._sizes = sizes
        self._data = {
            part: Text(part) if network == "gpt" else Digits(sizes.scale, part) for part in (LEARNT, HELD_OUT)
        }
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=sizes.rate)

    def step(self, seed: int, rate: float, scope: AbstractContextManager[Any]) -> float:
        """Train on one batch, with forward under ``scope``, and return the loss."""
        self._optimizer.zero_grad()
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        loss = self._backward(seed, scope)
        self._optimizer.step()
        return loss

    def gradients(self, seed: int, scope: AbstractContextManager[Any]) -> dict[str, NDArray[Any]]:
        """Return the gradient of every parameter by name, for one batch, with forward under ``scope``."""
        self._optimizer.zero_grad()
        self._backward(seed, scope)
        named = self._model.named_parameters()
        return {name: parameter.grad.numpy().copy() for name, parameter in named if parameter.grad is not None}

    @torch.no_grad()
    def evaluate(self, batches: int) -> tuple[float, float]:
        """Return loss and accuracy on data it was not trained on."""
        self._model.eval()
        losses, hits = [], []
        for seed in range(batches):
            logits, targets = self._logits(HELD_OUT, seed)
            losses.append(F.cross_entropy(logits, targets))
            hits.append((logits.argmax(-1) == targets).float().mean())
        self._model.train()
        return torch.stack(losses).mean().item(), torch.stack(hits).mean().item()

    def _backward(self, seed: int, scope: AbstractContextManager[Any]) -> float:
        with scope:
            loss = F.cross_entropy(*self._logits(LEARNT, seed))
        loss.backward()
        return loss.item()

    def _logits(self, part: tuple[float, float], seed: int) -> tuple[Tensor, Tensor]:
        data, sizes = self._data[part], self._sizes
        batch = (
            data.batch(sizes.batch, sizes.context, seed) if isinstance(data, Text) else data.batch(sizes.batch, seed)
        )
        inputs, targets = map(torch.from_numpy, batch)
        return self._model(inputs).flatten(0, -2), targets.flatten()
