"""What lossy policies do to training: held-out loss and accuracy beside the spread of seeds, and gradient errors.

    python tests/bench/training_quality.py results/              # 4 tasks, 5 seeds, 300 steps
    python tests/bench/training_quality.py results/ --task torch/gpt --policy "quantize:bits=8,group_size=32" --seeds 3

A GPT learns the text of Python's documentation, a residual network scikit-learn's digits, each in both frameworks, with
every saved activation going through the policy. Each policy starts from the same seeds as training without one. The
spread is the largest distance of a seed without a policy from their mean; a policy's deviation is the distance of its
mean from that mean, in spreads. Gradients are compared, parameter by parameter, at the weights that training without a
policy ends with. Writes ``training_quality.json``, ``.md`` and ``.png`` into the folder; the same
command gives the same numbers on the same machine.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from learning import BASELINE, POLICIES, TASKS, Findings, GradientError, Outcome, Sizes
from numpy.typing import NDArray
from quality_report import as_markdown, plot
from steps import machine

import tensorstash as ts

NAMES = tuple("/".join(task) for task in TASKS)


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


def work(framework: str, network: str, options: argparse.Namespace) -> Findings:
    """Do everything about one task, in this process."""
    sizes = TASKS[framework, network]
    if options.tiny:
        sizes = replace(sizes, batch=4, depth=2)
    outcomes, gradients = [], []
    for seed in range(options.seeds):
        for policy in (BASELINE, *options.policy):
            learning, outcome = train(framework, network, sizes, policy, seed, options.steps)
            outcomes.append(outcome)
            print(f"{framework} {network}: {outcome}", file=sys.stderr, flush=True)
            if (policy, seed) == (BASELINE, 0):
                gradients = list(gradient_errors(learning, framework, options.policy))
    return Findings(framework, network, tuple(outcomes), tuple(gradients))


def find_out(task: str, options: argparse.Namespace) -> Findings:
    """Do everything about one task, in a process of its own: Paddle changes how PyTorch computes."""
    command = [sys.executable, __file__, str(options.folder), "--work", "--task", task]
    command += ["--seeds", str(options.seeds), "--steps", str(options.steps), *["--tiny"] * options.tiny]
    for policy in options.policy:
        command += ["--policy", policy]
    done = subprocess.run(command, env=dict(os.environ, OMP_NUM_THREADS="1"), stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{task}: exit status {done.returncode}")
    found = json.loads(done.stdout.splitlines()[-1])
    outcomes = tuple(Outcome(**outcome) for outcome in found.pop("outcomes"))
    gradients = tuple(GradientError(**error) for error in found.pop("gradients"))
    return Findings(**found, outcomes=outcomes, gradients=gradients)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the results go")
    parser.add_argument("--task", action="append", choices=NAMES)
    parser.add_argument("--policy", action="append", help="a policy as one line")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="tasks at one time, each on one thread")
    parser.add_argument("--tiny", action="store_true", help="sizes that show nothing but that it runs")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.policy = options.policy or list(POLICIES)
    if options.work:
        (task,) = options.task
        framework, network = task.split("/")
        print(json.dumps(asdict(work(framework, network, options))))
        return

    with ThreadPoolExecutor(options.jobs) as tasks:
        findings = list(tasks.map(lambda task: find_out(task, options), options.task or NAMES))
    conditions = f"{options.seeds} seeds, {options.steps} steps. {machine()}."
    everything = {"conditions": conditions, "findings": [asdict(found) for found in findings]}
    options.folder.mkdir(parents=True, exist_ok=True)
    files = options.folder / "training_quality.json"
    files.write_text(json.dumps(everything, indent=1) + "\n")
    files.with_suffix(".md").write_text(as_markdown(findings, conditions))
    plot(findings, files.with_suffix(".png"))
    print(as_markdown(findings, conditions), end="")


if __name__ == "__main__":
    main()
