"""A network that learns, as far as both frameworks spell it alike, and the jobs that train it and measure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from hashlib import sha256
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tensorstash as ts
from benchmarks.harness.meter import Meter
from benchmarks.harness.turns import Job
from benchmarks.models import Model, build
from benchmarks.models.data import Batches
from tensorstash.backends import backend_named

NONE = "none"
"""In place of a policy: tensors are saved as without this package."""

Gradients = Iterable[tuple[str, NDArray[Any]]]


class Training:
    """Network, batches and optimizer of one framework, which subclasses make.

    They also say how a tensor is made of an array (``_tensor``), what the cross entropy is (``_loss``), what records no
    graph (``_no_grad``), how gradients become zero (``clear``), and how the optimizer steps at a rate (``update``).
    """

    _loss: Any
    _tensor: Any
    _no_grad: Any
    clear: Any
    update: Any

    def __init__(self, model: Model, network: Any, optimizer: Any) -> None:
        self._model, self.network, self._optimizer = model, network, optimizer
        self._batches = Batches(model)

    def forward(self, step: int, *, small: bool = False) -> Any:
        """Return the loss of a step, with its graph; of a few numbers, if small."""
        return self._loss(*self._logits(self._batches, step, small=small))

    def backward(self, loss: Any) -> float:
        """Compute the gradients, and return the loss as a number."""
        loss.backward()
        return float(loss.item())

    def gradients(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the gradient of each parameter by name; the arrays are valid until gradients change."""
        for name, parameter in self.network.named_parameters():
            if parameter.grad is not None:
                yield name, self._array(parameter.grad)

    def evaluate(self, batches: int) -> tuple[float, float]:
        """Return loss and accuracy on batches of data that is held out."""
        self.network.eval()
        held_out = Batches(self._model, held_out=True)
        losses, hits = [], []
        with self._no_grad():
            for seed in range(batches):
                logits, targets = self._logits(held_out, seed)
                losses.append(self._loss(logits, targets).item())
                hits.append(np.mean((logits.argmax(-1) == targets).numpy()))
        self.network.train()
        return mean(losses), float(np.mean(hits))

    def _logits(self, batches: Batches, seed: int, *, small: bool = False) -> tuple[Any, Any]:
        inputs, targets = map(self._tensor, batches(seed, small=small))
        return self.network(inputs).flatten(0, -2), targets.flatten()

    def _array(self, gradient: Any) -> NDArray[Any]:
        array: NDArray[Any] = gradient.numpy()
        return array


def scope_of(
    policy: str,
    framework: str,
    network: Any = None,
    *,
    min_bytes: int | str = "64KiB",
    budget: int | str | None = None,
    **limits: Any,
) -> AbstractContextManager[Any]:
    """Return the context of forward passes: a stash, or nothing.

    Args:
        policy: one line, or :data:`NONE`.
        framework: the one that trains.
        network: is wrapped by a policy that begins with ``checkpoint``.
        min_bytes: smaller tensors are kept.
        budget: most bytes that may stay; None for no budget.
        limits: of the session, by name.
    """
    if policy == NONE:
        return nullcontext()
    told: dict[str, Any] = {} if budget is None else {"budget": budget}
    told |= {"min_bytes": min_bytes, "limits": ts.Limits(**limits)}
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
    training = build(Model(**model))
    stash = scope_of(policy, model["framework"], training.network, **scope)
    training.backward(training.forward(0, small=True))  # gradients and libraries are in memory
    training.update()
    meter = Meter()
    yield None
    digest, loss = sha256(), float("nan")
    for step in range(steps):
        meter.begin()
        with meter:
            with stash as entered:
                value = training.forward(step + 1)
            loss = training.backward(value)
            del value
        if step in compared:
            digest.update(digest_of(training.gradients(), saved))
        with meter:
            training.update()
        yield None
    stats = entered.stats().to_dict() if entered is not None else None
    return {**meter.report(), "loss": loss, "gradients_sha256": digest.hexdigest(), "stats": stats}


def digest_of(gradients: Gradients, saved: str | None = None) -> bytes:
    """Return the SHA-256 over names, shapes and bits of gradients, and write them where there is a path."""
    arrays: dict[str, Any] = dict(gradients)
    if saved:
        np.savez(saved, **arrays)
    digest = sha256()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.digest()


def saves(model: Mapping[str, Any]) -> Iterator[Any]:
    """Return the distinct bytes that a forward pass saves for backward, without parameters."""
    training, backend = build(Model(**model)), backend_named(model["framework"])
    sizes: dict[Any, int] = {}

    def pack(tensor: Any) -> Any:
        if backend.keep_reason(tensor) is None:
            nbytes = backend.spec(tensor).nbytes
            place = backend.storage(tensor)
            sizes[place] = max(nbytes, sizes.get(place, 0))
        return backend.alias(tensor)

    yield None
    with ts.saved_tensors_hooks(pack, lambda kept: kept, framework=model["framework"]):
        loss = training.forward(1)
    training.backward(loss)
    return sum(sizes.values())


def job(title: str, model: Model, steps: int, policy: str, **options: Any) -> Job:
    """Return the process that does :func:`train`; the options are its other arguments, and those of the job."""
    places = {name: options.pop(name) for name in ("environment", "package") if name in options}
    arguments = {"model": asdict(model), "steps": steps, "policy": policy, **options}
    return Job(title, "benchmarks.models.training:train", arguments, **places)
