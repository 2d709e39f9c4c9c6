"""A network that learns, what is spelled alike in both frameworks; and the job of all that trains to be measured."""

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict
from statistics import mean
from typing import Any

import numpy as np

import tensorstash as ts
from benchmarks.harness.bare_disk import BARE_DISK, BareDisk
from benchmarks.harness.moments import MOMENTS, Moments
from benchmarks.harness.runner import ROOT
from benchmarks.models import Model, build
from benchmarks.models.data import Batches
from tensorstash.cli import bench_worker
from tensorstash.cli.bench_worker import Steps, measure, scope_of
from tensorstash.cli.turns import Job
from tensorstash.host.allocator import advised_environment


class Training(bench_worker.Training):
    """Network, batches and optimizer of one framework, which subclasses make.

    They also say how a tensor is made of an array (``_tensor``), what the cross entropy is (``_loss``), and what
    records no graph (``_no_grad``). Their ``update`` may be told another rate of learning.
    """

    def __init__(self, model: Model, network: Any, optimizer: Any) -> None:
        super().__init__(network, optimizer)
        self._model = model
        self._batches = Batches(model)

    def forward(self, step: int, *, small: bool = False) -> Any:
        return self._loss(*self._logits(self._batches, step, small=small))

    def evaluate(self, batches: int) -> tuple[float, float]:
        """Return loss and accuracy on batches of data that is held out."""
        self._network.eval()
        held_out = Batches(self._model, held_out=True)
        losses, hits = [], []
        with self._no_grad():
            for seed in range(batches):
                logits, targets = self._logits(held_out, seed)
                losses.append(self._loss(logits, targets).item())
                hits.append(np.mean((logits.argmax(-1) == targets).numpy()))
        self._network.train()
        return mean(losses), float(np.mean(hits))

    @abstractmethod
    def clear(self) -> None:
        """Set the gradients to zero, keeping their memory."""

    def _logits(self, batches: Batches, seed: int, *, small: bool = False) -> tuple[Any, Any]:
        inputs, targets = map(self._tensor, batches(seed, small=small))
        return self._network(inputs).flatten(0, -2), targets.flatten()


SCOPES: Mapping[str, Callable[..., Any]] = {BARE_DISK: BareDisk, MOMENTS: Moments}
"""What forwards may run under in place of a policy, by name; each is told what follows in its line."""


def train(model: Mapping[str, Any], steps: int, policy: str, *, scope: Mapping[str, Any], **compared: Any) -> Steps:
    """Train a model, given by its fields, a step for each turn; see :func:`scope_of` and :func:`measure`."""
    name, *told = policy.split()
    stash: Any = SCOPES[name](*told) if name in SCOPES else scope_of(policy, model["framework"], **scope)
    found = yield from measure(build(Model(**model)), stash, steps, **compared)
    stashed = found["stats"]["stashed"]["nbytes"] / steps if found["stats"] else 0.0
    is_planned = policy.startswith("budget") and isinstance(stash, ts.Stash)
    found |= {MOMENTS: stash.found} if isinstance(stash, Moments) else {}
    return {**found, "stashed_bytes": stashed, "native_bytes": stash.plan().native if is_planned else None}


def job(
    title: str, model: Model, steps: int, policy: str, environment: Mapping[str, str] | None = None, **options: Any
) -> Job:
    """Return the process that does :func:`train`, whose other arguments are the options, in the advised environment."""
    arguments = {"model": asdict(model), "steps": steps, "policy": policy, **options}
    chosen = advised_environment(os.environ) if environment is None else environment
    return Job(title, "benchmarks.models.training:train", arguments, chosen, ROOT)
