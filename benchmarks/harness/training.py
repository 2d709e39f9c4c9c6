"""The job of everything that trains to be measured: steps of one model under one policy."""

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import tensorstash as ts
from benchmarks.harness import gradients
from benchmarks.harness.worker import Meter
from benchmarks.models import Model, build
from tensorstash.allocator import keep_idle

NO_POLICY = "none"


def train(
    model: Mapping[str, Any],
    steps: int,
    policy: str = NO_POLICY,
    *,
    limits: Mapping[str, Any] | None = None,
    min_bytes: int | str = "64KiB",
    idle: str | None = None,
    compared: int = 0,
    saved: str | None = None,
) -> Generator[float | None, None, dict[str, Any]]:
    """Train, a step for each turn, and yield its loss; return what was measured.

    Args:
        model: fields of a :class:`~benchmarks.models.Model`.
        steps: how many.
        policy: one line, or :data:`NO_POLICY`.
        limits: of the session, by name.
        min_bytes: smaller tensors are kept.
        idle: most bytes of host memory that the package keeps for later, as text; None for what it keeps by itself.
        compared: the step whose gradients are compared.
        saved: where these are written as well; an ``.npz`` file.
    """
    if idle is not None:
        keep_idle(idle)
    training = build(Model(**model))
    scope = session(policy, model["framework"], limits or {}, min_bytes)
    training.warm_up()
    meter = Meter()
    yield None
    digest, value = "", float("nan")
    for step in range(steps):
        meter.begin()
        with meter:
            with scope:
                loss = training.forward(step + 1)
            value = training.backward(loss)
            del loss
        if step == compared:
            digest = gradients.save(saved and Path(saved), training.gradients())
        with meter:
            training.update()
        yield value
    stats = scope.stats() if isinstance(scope, ts.Stash) else None
    return {
        **meter.report(),
        "final_loss": value,
        "gradients_sha256": digest,
        "stashed_bytes": stats.stashed.nbytes / steps if stats else 0.0,
        "stats": stats.to_dict() if stats else None,
    }


def session(
    policy: str, framework: str, limits: Mapping[str, Any], min_bytes: int | str = 0
) -> AbstractContextManager[Any]:
    """Return what forward runs under: a session, or nothing."""
    if policy == NO_POLICY:
        return nullcontext()
    return ts.stash(ts.parse(policy), framework=framework, limits=ts.Limits(**limits), min_bytes=min_bytes)
