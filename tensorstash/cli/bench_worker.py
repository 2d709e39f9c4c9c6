"""The process of one run of ``tensorstash bench``."""

import hashlib
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

from tensorstash.api import Stash, stash
from tensorstash.cli.comparison import NO_POLICY
from tensorstash.cli.worker import Meter
from tensorstash.engine.limits import Limits


def train(
    framework: str, policy: str, is_checkpointed: bool, sizes: Mapping[str, int], steps: int, budget: str
) -> Generator[dict[str, Any] | None, None, dict[str, Any]]:
    """Train, a step for each turn, and yield its loss and the peak so far; return what was measured.

    Args:
        framework: which one trains.
        policy: one line, or :data:`NO_POLICY`.
        is_checkpointed: whether the framework computes the activations of each block again.
        sizes: of the model.
        steps: how many.
        budget: bytes under way in each direction, as text.
    """
    module = import_module(f"tensorstash.cli.frameworks.{framework}")
    job = module.Job(sizes, is_checkpointed)
    scope = _scope(framework, policy, budget)
    job.backward(job.forward(small=True))  # gradients and libraries are in memory
    job.update()
    meter = Meter(job.peak())
    yield None
    digest, loss = "", float("nan")
    for _ in range(steps):
        meter.begin()
        with meter:
            with scope:
                value = job.forward()
            loss = job.backward(value)
            del value
        digest = digest or hashlib.sha256(b"".join(job.gradients())).hexdigest()
        job.update()
        yield {"loss": loss, "activation_bytes": meter.activation_bytes}
    stats = scope.stats().to_dict() if isinstance(scope, Stash) else None
    return {**meter.report(), "loss": loss, "gradients_sha256": digest, "stats": stats}


def _scope(framework: str, policy: str, budget: str) -> AbstractContextManager[Any]:
    """Return what the forward passes run under: a stash, or nothing."""
    if policy == NO_POLICY:
        return nullcontext()
    return stash(policy, framework=framework, limits=Limits(in_flight=budget, ahead=budget))
