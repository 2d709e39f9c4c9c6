"""What lossy policies do to training: held-out loss and accuracy beside the spread of seeds, and gradient errors.

    python -m benchmarks quality                              # 4 tasks, 5 seeds, 300 steps
    python -m benchmarks quality --task torch/gpt --policy "quantize:bits=8,group_size=32" --seeds 3

A GPT learns the text of Python's documentation, a residual network scikit-learn's digits, each in both frameworks, with
every saved activation going through the policy. Each policy starts from the same seeds as training without one. The
same command gives the same numbers on the same machine.
"""

import argparse
import os
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from statistics import mean, median
from typing import Any

import numpy as np

import tensorstash as ts
from benchmarks.harness.report import Report, columns
from benchmarks.harness.runner import alone, distance, policy_line
from benchmarks.models import Model
from benchmarks.models.training import NONE, Training, scope_of

POLICIES = ("quantize:bits=8", "quantize:bits=4", "quantize:bits=4,rounding=nearest", "quantize:bits=2")
POLICIES += ("quantize:bits=2,rounding=nearest", "cast:dtype=bfloat16", "cast:dtype=float16")

SIZES = {"depth": 2, "width": 64, "heads": 4, "context": 64, "held_out": 0.15}
GPT = Model(framework="torch", network="gpt", batch=8, rate=3e-3, optimizer="Adam", **SIZES)
RESNET = replace(GPT, network="resnet", batch=32, depth=4, width=8, scale=1)
TASKS = {
    f"{name}/{each.network}": replace(each, framework=name) for each in (GPT, RESNET) for name in ("torch", "paddle")
}
"""The rate falls to 0 in a straight line, or the last batches would decide the result."""

LEGEND = """\
Loss and accuracy are means over the seeds; ± is the spread, the largest distance of a seed from the mean.
Deviations are distances from training without a policy, in its spreads. Bytes are those stored for each byte of the
saved activations. Gradient errors are relative, of each parameter, at the weights that training without a policy ends
with."""

COLUMNS = columns("""
    task | policy | bytes:.3f | held-out loss:> | deviation:.2f | accuracy, %:> | its deviation:.2f |
    gradient error, median:.1e | worst:.1e | cosine, worst:.4f
""")

Outcome = Mapping[str, Any]
"""One training: ``policy``; ``seed``, of weights and data; ``loss`` and ``accuracy`` at its end, on held-out data;
``payload``, bytes stored for each that went through the policy's plan."""


def rows(task: str, outcomes: Sequence[Outcome], errors: Sequence[Mapping[str, Any]]) -> Iterator[list[Any]]:
    """Yield a row for each policy."""
    trained: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        trained.setdefault(outcome["policy"], []).append(outcome)
    for policy, found in trained.items():
        row: list[Any] = [task.replace("/", " "), policy]
        row.append(1.0 if policy == NONE else mean(outcome["payload"] for outcome in found))
        off = []
        for figure, factor, digits in (("loss", 1, 4), ("accuracy", 100, 2)):
            values, base = ([factor * each[figure] for each in some] for some in (found, trained[NONE]))
            distance = abs(mean(values) - mean(base))
            off.append(distance / spread(base) if distance else 0.0)
            row.append(f"{mean(values):.{digits}f} ± {spread(values):.{digits}f}")
            row.append(None if policy == NONE else off[-1])
        wrong = [error for error in errors if error["policy"] == policy]
        relative = [error["relative"] for error in wrong] or [None]
        row += [median(relative), max(relative), min((error["cosine"] for error in wrong), default=None)]
        yield row


def spread(values: Sequence[float]) -> float:
    """Return the largest distance of a value from the mean."""
    return max(abs(value - mean(values)) for value in values)


scope = partial(scope_of, min_bytes=0, in_flight=0, ahead=0)
"""What forward runs under: each activation goes through the policy, and is stored at once, and counted."""


def train(model: Model, policy: str, steps: int) -> tuple[Training, Outcome]:
    """Train under a policy; return what has learnt, and how well."""
    training, stash = Training(model), scope(policy, model.framework)
    for step in range(steps):
        with stash:
            loss = training.forward(model.seed * 1_000_000 + step)
        loss.backward()
        training.update(model.rate * (1 - step / steps))
    payload = 0.0
    if isinstance(stash, ts.Stash):
        stats = stash.stats()
        assert stats.stashed.tensors > steps, f"{policy} has left almost everything alone: {stats}"
        encoded = next(iter(stats.stages.values())).bytes_in
        payload = sum(tally.nbytes for tally in stats.stored.values()) / encoded
    loss, accuracy = training.evaluate(batches=16)
    how_well = {"loss": loss, "accuracy": accuracy, "payload": payload}
    return training, {"policy": policy, "seed": model.seed, **how_well}


def gradient_errors(training: Training, framework: str, policies: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield how far gradients are from those without a policy, at the weights as they are, by policy and parameter."""
    exact: dict[str, Any] = {}
    for policy in (NONE, *policies):
        training.clear()
        with scope(policy, framework):
            loss = training.forward(999)
        loss.backward()
        found = {name: array.astype(np.float64).ravel() for name, array in training.gradients()}
        exact = exact or found
        for name, gradient in found.items():
            if policy != NONE:
                norms = float(np.linalg.norm(exact[name]) * np.linalg.norm(gradient))
                relative, cosine = distance(gradient, exact[name]), float(gradient @ exact[name]) / norms
                yield {"policy": policy, "parameter": name, "relative": relative, "cosine": cosine}


def work(
    task: str, policies: Sequence[str], seeds: int, steps: int, tiny: bool
) -> Generator[Outcome | None, None, list[dict[str, Any]]]:
    """Do everything about one task: yield outcomes, return gradient errors."""
    model = TASKS[task]
    model = replace(model, batch=4, depth=2) if tiny else model
    errors: list[dict[str, Any]] = []
    yield None
    for seed in range(seeds):
        for policy in (NONE, *policies):
            training, outcome = train(replace(model, seed=seed), policy, steps)
            if (policy, seed) == (NONE, 0):
                errors = list(gradient_errors(training, model.framework, policies))
            yield outcome
    return errors


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", action="append", choices=TASKS)
    parser.add_argument("--policy", action="append", type=policy_line, help="a policy as one line")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="tasks at one time, each on one thread")
    parser.add_argument("--tiny", action="store_true", help="sizes that show nothing but that it runs")


def main(options: argparse.Namespace, report: Report) -> None:
    report.begin(COLUMNS, LEGEND, f"{options.seeds} seeds", f"{options.steps} steps")
    sizes = {"seeds": options.seeds, "steps": options.steps, "tiny": options.tiny}
    outcomes = report.measured["outcomes"] = {task: [] for task in options.task or TASKS}

    def add(task: str, outcome: Outcome) -> None:
        outcomes[task].append(outcome)
        print(f"{task}: {outcome}", file=sys.stderr, flush=True)

    def find_out(task: str) -> list[dict[str, Any]]:
        # In a process of its own: Paddle changes how PyTorch computes.
        told = {"task": task, "policies": options.policy or POLICIES, **sizes}
        return alone("quality:work", task, partial(add, task), **told)  # type: ignore[no-any-return]

    with ThreadPoolExecutor(options.jobs) as tasks:
        gradients = report.measured["gradients"] = dict(zip(outcomes, tasks.map(find_out, outcomes), strict=True))
    for task, found in outcomes.items():
        for row in rows(task, found, gradients[task]):
            report.row(row)
