"""Train with PaddleFormers in an environment of its own: ``python -m tests.paddleformers``.

It is in no extra: it depends, by way of what reads its data for pretraining, on a NumPy older than ours, so that pip
installs the two in turn alone. Prints a line for each way to train; the exit status is the number of those that fail.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.packages import ROOT, install

WORKER = ROOT / "tests" / "integrations" / "paddleformers_worker.py"


def main() -> int:
    """Install, train in every way, and return in how many something is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        python = install(Path(folder, "environment"), "paddlepaddle==3.3.1", "paddleformers>=1.2", ROOT)
        return subprocess.run([python, "-W", "ignore", WORKER], cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
