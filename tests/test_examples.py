"""Every example runs as a user would run it, and says what it should."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

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

PARTS = {"tiny_autograd"}
"""Files that an example imports."""


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*EXPECTED, *PARTS}


@pytest.mark.parametrize("name", EXPECTED)
def test_example_does_what_it_says(name: str) -> None:
    done = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    for pattern in EXPECTED[name]:
        assert re.search(pattern, done.stdout), f"{pattern!r} is not in:\n{done.stdout}"
