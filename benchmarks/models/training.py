"""A network that learns in either framework, and the job that trains it and measures."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from hashlib import sha256
from importlib import import_module
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tensorstash as ts
from benchmarks.harness.meter import Meter
from benchmarks.harness.turns import Job
from benchmarks.models import Model
from benchmarks.models.data import batch
from benchmarks.models.networks import NETWORKS, new

NONE = "none"
"""In place of a policy: tensors are saved as without this package."""


class Training:
    """Network, batches and optimizer of a model; imports its framework, and no other."""

    def __init__(self, model: Model) -> None:
        self._model, self._of = model, import_module(f"benchmarks.models.{model.framework}")
        self._of.seed(model.seed)
        self.network = new(self._of, NETWORKS[model.network], model)
        self._optimizer = self._of.optimizer(model.optimizer, model.rate, self.network.parameters())

    def warm_up(self) -> None:
        """Let gradients, optimizer and libraries be in memory, by a step of a few numbers."""
        few = batch(replace(self._model, batch=2, context=8), 0)
        self._of.F.cross_entropy(*self._logits(*few)).backward()
        self.update(0.0)  # the first calls of MKL in a process may have other bits than all later ones

    def forward(self, step: int) -> Any:
        """Return the loss of a step, with its graph."""
        return self._of.F.cross_entropy(*self._logits(*batch(self._model, step)))

    def gradients(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the gradient of each parameter by name; the arrays are valid until gradients change."""
        for name, parameter in self.network.named_parameters():
            if parameter.grad is not None:
                yield name, parameter.grad.numpy()

    def update(self, rate: float) -> None:
        """Let the optimizer step at a rate."""
        self._of.set_rate(self._optimizer, rate)
        self._optimizer.step()
        self.clear()

    def clear(self) -> None:
        """Set gradients to zero."""
        self._of.clear(self._optimizer)

    def evaluate(self, batches: int) -> tuple[float, float]:
        """Return loss and accuracy on batches of data that is held out."""
        self.network.eval()
        losses, hits = [], []
        with self._of.no_grad():
            for seed in range(batches):
                logits, targets = self._logits(*batch(self._model, seed, held_out=True))
                losses.append(self._of.F.cross_entropy(logits, targets).item())
                hits.append(np.mean((logits.argmax(-1) == targets).numpy()))
        self.network.train()
        return mean(losses), float(np.mean(hits))

    def _logits(self, *arrays: NDArray[Any]) -> tuple[Any, Any]:
        inputs, targets = map(self._of.tensor, arrays)
        return self.network(inputs).flatten(0, -2), targets.flatten()


def scope_of(
    policy: str, framework: str, network: Any = None, *, min_bytes: Any = "64KiB", budget: Any = None, **limits: Any
) -> AbstractContextManager[Any]:
    """Return the context of forward passes under a policy, which wraps the network if it begins with ``checkpoint``."""
    if policy == NONE:
        return nullcontext()
    told: dict[str, Any] = {"budget": budget, "min_bytes": min_bytes, "limits": ts.Limits(**limits)}
    if policy.startswith("checkpoint"):
        return nullcontext(ts.wrap(network, policy, **told))
    return ts.stash(policy, framework=framework, **told)


def train(
    model: Mapping[str, Any],
    steps: int,
    policy: str,
    *,
    scope: Mapping[str, Any],
    compared: Sequence[int] = (0,),
    saved: str | None = None,
) -> Iterator[Any]:
    """Train a model and measure memory and time: a step for each turn.

    Args:
        model: the fields of a :class:`~benchmarks.models.Model`.
        steps: how many.
        policy: one line, or :data:`NONE`.
        scope: other arguments of :func:`scope_of`.
        compared: steps whose gradients are compared.
        saved: an ``.npz`` file for the last of these gradients.
    """
    training = Training(Model(**model))
    stash = scope_of(policy, model["framework"], training.network, **scope)
    training.warm_up()
    meter = Meter()
    yield None
    digest = sha256()
    for step in range(steps):
        meter.begin()
        with meter:
            with stash as entered:
                loss = training.forward(step + 1)
            loss.backward()
            del loss
        if step in compared:
            gradients: dict[str, Any] = dict(training.gradients())
            if saved:
                np.savez(saved, **gradients)
            for name, array in gradients.items():
                digest.update(f"{name} {array.dtype} {array.shape} ".encode())
                digest.update(np.ascontiguousarray(array).data)
            del gradients
        with meter:
            training.update(model["rate"])
        yield None
    stats = entered.stats().to_dict() if entered is not None else None
    return {**meter.report(), "gradients_sha256": digest.hexdigest(), "stats": stats}


def job(title: str, model: Model, steps: int, policy: str, environment: Any = None, **options: Any) -> Job:
    """Return the process that does :func:`train`; the options are its other arguments."""
    arguments = {"model": asdict(model), "steps": steps, "policy": policy, **options}
    return Job(title, "benchmarks.models.training:train", arguments, environment)
