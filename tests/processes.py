"""Processes of the tests' own that train together."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def outputs_of(commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]]) -> list[str]:
    """Run commands side by side, each in its environment; return what each has printed. All must succeed."""
    places = {"PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = [
        subprocess.Popen(command, text=True, env={**environment, **places}, cwd=ROOT, **pipes)
        for command, environment in zip(commands, environments, strict=True)
    ]
    try:
        outputs = [process.communicate(timeout=200) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(started, outputs, strict=True):
        assert process.returncode == 0, errors[-4000:]
    return [output for output, _ in outputs]
