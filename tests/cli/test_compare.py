"""A user's own script is run under each policy, and the table says whether gradients agree."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tensorstash.cli import main
from tensorstash.cli.compare import table
from tensorstash.cli.program import Record

ROOT = Path(__file__).resolve().parents[2]

TORCH = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256), torch.nn.GELU()] * 4)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(9):  # what the first saves is kept, for it is small
    loss = model(torch.randn(512 if step else 1, 256)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(sys.argv[1:], step, float(loss))
"""

PADDLE = """
import paddle
paddle.seed(0)
model = paddle.nn.Sequential(*[paddle.nn.Linear(256, 256), paddle.nn.GELU()] * 4)
optimizer = paddle.optimizer.AdamW(parameters=model.parameters())
for step in range(9):
    loss = model(paddle.randn([512 if step else 1, 256])).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    print(step, float(loss))
"""


@pytest.mark.parametrize("program", [TORCH, PADDLE], ids=["torch", "paddle"])
def test_a_script_is_compared_without_change(program: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(program)
    asked = ["--policy", "none", "--policy", "quantize:bits=2 | disk_spill"]
    words = ["compare", "train.py", *asked, "--steps", "3", "--", "--epochs", "3"]
    command = [sys.executable, "-m", "tensorstash", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=880)
    assert done.returncode == 0, done.stderr
    _, *rows = [re.split(r" {2,}", line) for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == asked[1::2]
    assert rows[0][5:] == ["equal", "2 of 2 equal"]  # the third step ends the script before it prints
    assert rows[1][5:] == ["differ from step 2 on", "2 of 2 equal"]
    assert all(int(row[1]) > 50 and float(row[3]) > 0 for row in rows)


def test_a_script_without_an_optimizer_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('no training')")
    assert main(["compare", str(script), "--policy", "none"]) == 1
    assert "made 0 steps of an optimizer, expected 2 or more" in capsys.readouterr().err
    script.write_text("raise ValueError('of its own')")
    assert main(["compare", str(script), "--policy", "none"]) == 1
    assert "ValueError: of its own" in capsys.readouterr().err


def test_a_mistake_in_a_policy_is_found_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", __file__, "--policy", "none", "--policy", "disk_spil"]) == 1
    assert "did you mean 'disk_spill'?" in capsys.readouterr().err


def test_the_table_names_the_first_step_whose_gradients_differ() -> None:
    first = Record([9.0, 1.0, 1.0], ["a", "b", "c"], 100 << 20, 0, ["one", "two"])
    other = Record([9.0, 2.0, 2.0], ["a", "x", "y"], 50 << 20, 7 << 20, ["one", "2"])
    heads, *rows = [re.split(r" {2,}", line) for line in table([("none", first), ("it", other)]).splitlines()]
    assert heads[:5] == ["policy", "peak MiB", "of first", "device MiB", "s/step"]
    assert rows == [
        ["none", "100", "1.00", "0", "1.000", "1.00", "equal", "2 of 2 equal"],
        ["it", "50", "0.50", "7", "2.000", "2.00", "differ from step 2 on", "1 of 2 equal"],
    ]
