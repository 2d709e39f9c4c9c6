"""The process of one task of training_quality.py: trains it with every policy, and prints what it found, as JSON."""

import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from learning import BASELINE, TASKS, Findings, GradientError, Outcome, Sizes
from numpy.typing import NDArray

import tensorstash as ts


def learner(framework: str, network: str, sizes: Sizes, seed: int) -> Any:
    if framework == "torch":
        from torch_learners import TorchLearner as Learner
    else:
        from paddle_learners import PaddleLearner as Learner
    return Learner(network, sizes, seed)


def scope(policy: str, framework: str) -> AbstractContextManager[Any]:
    """Return what forward runs under: every activation goes through the policy, whatever its size.

    Nothing is done behind the computation, so that every payload is stored, and counted.
    """
    if policy == BASELINE:
        return nullcontext()
    return ts.stash(ts.parse(policy), framework=framework, min_bytes=0, limits=ts.Limits(in_flight=0, ahead=0))


def train(framework: str, network: str, sizes: Sizes, policy: str, seed: int, steps: int) -> tuple[Any, Outcome]:
    """Train from a seed under a policy; return what has learnt, and how well."""
    learning, stash = learner(framework, network, sizes, seed), scope(policy, framework)
    for step in range(steps):
        learning.step(seed * 1_000_000 + step, sizes.rate * (1 - step / steps), stash)
    loss, accuracy = learning.evaluate(batches=16)
    payload = share = 0.0
    if isinstance(stash, ts.Stash):
        stats = stash.stats()
        assert stats.stashed.tensors > steps, f"{policy} has left almost everything alone: {stats}"
        stored = sum(tally.nbytes for tally in stats.stored.values())
        kept = sum(t.nbytes for reason, t in stats.kept.items() if "parameter" not in reason and "leaf" not in reason)
        payload = stored / stats.stashed.nbytes
        share = (stats.stashed.nbytes + stats.deduplicated.nbytes) / (
            stats.stashed.nbytes + stats.deduplicated.nbytes + kept
        )
    return learning, Outcome(policy, seed, loss, accuracy, payload, share)


def gradient_errors(learning: Any, framework: str, policies: list[str]) -> Iterator[GradientError]:
    """Yield the error of every parameter's gradient under every policy, at the weights as they are."""
    batch = 999
    exact: dict[str, NDArray[Any]] = learning.gradients(batch, nullcontext())
    for policy in policies:
        for name, gradient in learning.gradients(batch, scope(policy, framework)).items():
            true = exact[name].astype(np.float64).ravel()
            found = gradient.astype(np.float64).ravel()
            norm = float(np.linalg.norm(true))
            error = float(np.linalg.norm(found - true)) / norm
            cosine = float(found @ true) / (norm * float(np.linalg.norm(found)))
            yield GradientError(policy, name, error, cosine)


def work(framework: str, network: str, policies: list[str], seeds: int, steps: int, *, tiny: bool) -> Findings:
    """Do everything about one task, in this process."""
    sizes = TASKS[framework, network]
    if tiny:
        sizes = replace(sizes, batch=4, depth=2)
    outcomes, gradients = [], []
    for seed in range(seeds):
        for policy in (BASELINE, *policies):
            learning, outcome = train(framework, network, sizes, policy, seed, steps)
            outcomes.append(outcome)
            print(f"{framework} {network}: {outcome}", file=sys.stderr, flush=True)
            if (policy, seed) == (BASELINE, 0):
                gradients = list(gradient_errors(learning, framework, policies))
    return Findings(framework, network, tuple(outcomes), tuple(gradients))


def main() -> None:
    task, seeds, steps, size, *policies = sys.argv[1:]
    framework, network = task.split("/")
    found = work(framework, network, policies, int(seeds), int(steps), tiny=size == "tiny")
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()
