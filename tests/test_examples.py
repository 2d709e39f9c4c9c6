"""Every example says what it should, in a process of its own, or after others that use the same framework."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.forked_workers import PROGRAMS

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

EXPECTED = {
    "torch_transformer": [r"on disk at the peak: [1-9]\d* MiB; now: 0 bytes", "gradients bitwise equal: True"],
    "paddle_vision": [r"compressed at the peak: [1-9][\d.]* MiB of", "gradients bitwise equal: True"],
    "policy_from_file": [r"payloads: [1-9]\d* in disk, [1-9]\d* in memory"],
    "own_codec": [r"ratio: 1\.\d\d", "gradients bitwise equal: True"],
    "own_store": [r"payloads in the database: [1-9]", "gradients bitwise equal: True"],
    "own_backend": [
        r"in memory +[1-9]",
        r"x \*\* 4 has the gradient 4 x \*\* 3: True",
        "refused: one of the variables needed for gradient computation has been modified by an inplace operation",
    ],
}
"""What has to be found in the output of each example."""

TOGETHER = {
    "no framework": ["own_backend"],
    "paddle": ["paddle_vision"],
    "torch": ["own_codec", "own_store", "policy_from_file", "torch_transformer"],
}
"""What one process runs, one after the other: to import a framework takes longer than most examples."""

PARTS = {"tiny_autograd"}
"""Files that an example imports."""


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*EXPECTED, *PARTS}
    assert sorted(EXPECTED) == sorted(name for names in TOGETHER.values() for name in names)


PROGRAM = """
import runpy, sys
for path in sys.argv[1:]:
    runpy.run_path(path, run_name="__main__")
    print("end of", path)
"""


@pytest.mark.parametrize("framework", TOGETHER)
def test_examples_do_what_they_say(framework: str, warm: Callable[..., str]) -> None:
    examples = TOGETHER[framework]
    paths = [str(EXAMPLES / f"{name}.py") for name in examples]
    python = warm(*PROGRAMS[framework]) if framework in PROGRAMS else sys.executable
    command = [python, "-c", PROGRAM, *paths]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(EXAMPLES), os.environ.get("PYTHONPATH", "")))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    rest = done.stdout
    for name, path in zip(examples, paths, strict=True):
        said, _, rest = rest.partition(f"end of {path}\n")
        for pattern in EXPECTED[name]:
            assert re.search(pattern, said), f"{pattern!r} is not in:\n{said}"
