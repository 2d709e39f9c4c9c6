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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from learning import POLICIES, TASKS, Findings, GradientError, Outcome
from quality_report import as_markdown, plot
from steps import machine

NAMES = tuple("/".join(task) for task in TASKS)


def find_out(task: str, options: argparse.Namespace) -> Findings:
    """Do everything about one task, in a process of its own: Paddle changes how PyTorch computes."""
    command = [sys.executable, str(Path(__file__).with_name("quality_worker.py")), task]
    command += [str(options.seeds), str(options.steps), "tiny" if options.tiny else "full", *options.policy]
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
    options = parser.parse_args()
    options.policy = options.policy or list(POLICIES)

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
