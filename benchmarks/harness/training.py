"""The job of everything that trains to be measured: steps of one model under one policy."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tensorstash as ts
from benchmarks.harness.runner import ROOT
from benchmarks.models import Model, build
from tensorstash.cli.comparison import NO_POLICY
from tensorstash.cli.turns import Job
from tensorstash.cli.worker import Meter
from tensorstash.host.allocator import keep_idle


def train(
    model: Mapping[str, Any],
    steps: int,
    policy: str = NO_POLICY,
    *,
    limits: Mapping[str, Any] | None = None,
    min_bytes: int | str = "64KiB",
    idle: str | None = None,
    compared: Sequence[int] = (0,),
    saved: str | None = None,
) -> Generator[dict[str, Any] | None, None, dict[str, Any]]:
    """Train, a step for each turn, and yield its loss and the peak so far; return what was measured.

    Args:
        model: fields of a :class:`~benchmarks.models.Model`.
        steps: how many.
        policy: one line, or :data:`NO_POLICY`.
        limits: of the session, by name.
        min_bytes: smaller tensors are kept.
        idle: most bytes of host memory that the package keeps for later, as text; None for what it keeps by itself.
        compared: steps whose gradients are compared.
        saved: where the last of them are written as well; an ``.npz`` file.
    """
    if idle is not None:
        keep_idle(idle)
    training = build(Model(**model))
    scope = session(policy, model["framework"], limits or {}, min_bytes)
    training.warm_up()
    meter = Meter()
    yield None
    digest, value = sha256(), float("nan")
    for step in range(steps):
        meter.begin()
        with meter:
            with scope:
                loss = training.forward(step + 1)
            value = training.backward(loss)
            del loss
        if step in compared:
            digest.update(save_gradients(saved and Path(saved), training.gradients()).encode())
        with meter:
            training.update()
        yield {"loss": value, "activation_bytes": meter.activation_bytes}
    stats = scope.stats() if isinstance(scope, ts.Stash) else None
    return {
        **meter.report(),
        "final_loss": value,
        "gradients_sha256": digest.hexdigest(),
        "stashed_bytes": stats.stashed.nbytes / steps if stats else 0.0,
        "stats": stats.to_dict() if stats else None,
        "native_bytes": scope.plan().native if policy.startswith("budget") else None,
    }


def job(title: str, model: Model, steps: int, policy: str, environment: Mapping[str, str], **options: Any) -> Job:
    """Return the process that does :func:`train`, whose other arguments are the options."""
    arguments = {"model": asdict(model), "steps": steps, "policy": policy, **options}
    return Job(title, "benchmarks.harness.training:train", arguments, environment, ROOT)


def session(
    policy: str, framework: str, limits: Mapping[str, Any], min_bytes: int | str = 0
) -> AbstractContextManager[Any]:
    """Return what forward runs under: a session, or nothing."""
    if policy == NO_POLICY:
        return nullcontext()
    return ts.stash(ts.parse(policy), framework=framework, limits=ts.Limits(**limits), min_bytes=min_bytes)


def save_gradients(path: Path | None, gradients: Iterable[tuple[str, NDArray[Any]]]) -> str:
    """Return the SHA-256 over the gradients' names, shapes and bits, and write them where there is a path."""
    arrays = dict(gradients)
    if path:
        np.savez(path, **arrays)
    digest = sha256()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def largest_relative_difference(path: Path, reference: Path) -> float:
    """Return the largest ``norm(gradient - reference) / norm(reference)`` over the parameters."""
    with np.load(path) as ours, np.load(reference) as theirs:
        return max(
            float(np.linalg.norm((ours[name] - theirs[name]).ravel()) / np.linalg.norm(theirs[name].ravel()))
            for name in theirs.files
        )
