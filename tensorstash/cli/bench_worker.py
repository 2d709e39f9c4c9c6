"""The process of one training that is measured: steps under a policy, one for each turn."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstash.api import DEFAULT_MIN_BYTES, Stash, stash
from tensorstash.cli.comparison import NO_POLICY
from tensorstash.cli.worker import Meter
from tensorstash.policies.limits import Limits

Steps = Generator[dict[str, Any] | None, None, dict[str, Any]]
"""Steps, one for each turn: yields None when it is ready, then loss and peak so far; returns what was measured."""


class Training(ABC):
    """A network that learns.

    Args:
        network: what learns.
        optimizer: of its parameters.
    """

    def __init__(self, network: Any, optimizer: Any) -> None:
        self._network, self._optimizer = network, optimizer

    @abstractmethod
    def forward(self, step: int, *, small: bool = False) -> Any:
        """Return the loss of a step, with its graph; of a few numbers, if small."""

    @abstractmethod
    def update(self) -> None:
        """Step the optimizer; the memory of the gradients stays."""

    def backward(self, loss: Any) -> float:
        """Compute the gradients, and return the loss as a number."""
        loss.backward()
        return float(loss.item())

    def gradients(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the gradient of each parameter by name; the arrays are valid until gradients change."""
        for name, parameter in self._network.named_parameters():
            if parameter.grad is not None:
                yield name, self._array(parameter.grad)

    def peak(self) -> Callable[[], int] | None:
        """Return what gives the peak of an accelerator's bytes from now on; None where memory is the host's."""
        return None

    def _array(self, gradient: Any) -> NDArray[Any]:
        array: NDArray[Any] = gradient.cpu().numpy()
        return array


def train(
    framework: str, policy: str, is_checkpointed: bool, sizes: Mapping[str, int], steps: int, budget: str
) -> Steps:
    """Train what ``tensorstash bench`` compares.

    Args:
        framework: which one trains.
        policy: one line, or :data:`NO_POLICY`.
        is_checkpointed: whether the framework computes the activations of each block again.
        sizes: of the model.
        steps: how many.
        budget: bytes under way in each direction, as text.
    """
    training: Training = import_module(f"tensorstash.cli.frameworks.{framework}").Job(sizes, is_checkpointed)
    return (yield from measure(training, scope_of(policy, framework, in_flight=budget, ahead=budget), steps))


def scope_of(
    policy: str, framework: str, min_bytes: int | str = DEFAULT_MIN_BYTES, **limits: Any
) -> AbstractContextManager[Stash | None]:
    """Return what the forward passes run under: a stash, or nothing.

    Args:
        policy: one line, or :data:`NO_POLICY`.
        framework: which one trains.
        min_bytes: smaller tensors are kept.
        limits: of the session, by name.
    """
    if policy == NO_POLICY:
        return nullcontext()
    return stash(policy, framework=framework, min_bytes=min_bytes, limits=Limits(**limits))


def measure(
    training: Training,
    scope: AbstractContextManager[Stash | None],
    steps: int,
    *,
    compared: Sequence[int] = (0,),
    saved: str | None = None,
) -> Steps:
    """Train under a scope, and measure memory and time.

    Args:
        training: what learns.
        scope: around each forward.
        steps: how many.
        compared: steps whose gradients are compared.
        saved: where the last of them are written as well; an ``.npz`` file.
    """
    training.backward(training.forward(0, small=True))  # gradients and libraries are in memory
    training.update()
    meter = Meter(training.peak())
    yield None
    digest, loss = sha256(), float("nan")
    for step in range(steps):
        meter.begin()
        with meter:
            with scope:
                value = training.forward(step + 1)
            loss = training.backward(value)
            del value
        if step in compared:
            digest.update(digest_of(training.gradients(), saved))
        with meter:
            training.update()
        yield {"loss": loss, "activation_bytes": meter.activation_bytes}
    stats = scope.stats().to_dict() if isinstance(scope, Stash) else None
    return {**meter.report(), "loss": loss, "gradients_sha256": digest.hexdigest(), "stats": stats}


def digest_of(gradients: Iterable[tuple[str, NDArray[Any]]], saved: str | None = None) -> bytes:
    """Return the SHA-256 over names, shapes and bits of gradients, and write them where there is a path."""
    arrays: dict[str, Any] = dict(gradients)
    if saved:
        np.savez(saved, **arrays)
    digest = sha256()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.digest()
