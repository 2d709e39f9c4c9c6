"""The job of everything that trains to be measured: steps of one model under one policy."""

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import tensorstash as ts
from benchmarks.harness.runner import ROOT
from benchmarks.models import Model, build
from tensorstash.cli.bench_worker import Steps, measure, scope_of
from tensorstash.cli.turns import Job
from tensorstash.host.allocator import advised_environment, keep_idle


def train(
    model: Mapping[str, Any],
    steps: int,
    policy: str,
    *,
    limits: Mapping[str, Any],
    min_bytes: int | str = "64KiB",
    idle: str | None = None,
    **compared: Any,
) -> Steps:
    """Train, a step for each turn; see :func:`~tensorstash.cli.bench_worker.measure`.

    Args:
        model: fields of a :class:`~benchmarks.models.Model`.
        steps: how many.
        policy: one line, or ``"none"``.
        limits: of the session, by name.
        min_bytes: smaller tensors are kept.
        idle: most bytes of host memory that the package keeps for later, as text; None for what it keeps by itself.
        compared: which gradients are compared, and where they are written.
    """
    if idle is not None:
        keep_idle(idle)
    scope = scope_of(policy, model["framework"], min_bytes, **limits)
    found = yield from measure(build(Model(**model)), scope, steps, **compared)
    stashed = found["stats"]["stashed"]["nbytes"] / steps if found["stats"] else 0.0
    is_planned = policy.startswith("budget") and isinstance(scope, ts.Stash)
    return {**found, "stashed_bytes": stashed, "native_bytes": scope.plan().native if is_planned else None}


def job(
    title: str, model: Model, steps: int, policy: str, environment: Mapping[str, str] | None = None, **options: Any
) -> Job:
    """Return the process that does :func:`train`, whose other arguments are the options, in the advised environment."""
    arguments = {"model": asdict(model), "steps": steps, "policy": policy, **options}
    chosen = advised_environment(os.environ) if environment is None else environment
    return Job(title, "benchmarks.harness.training:train", arguments, chosen, ROOT)
