"""A model is estimated from the command line: the answer first, a dictionary as the batch, alike layers folded."""

import json
from pathlib import Path

import pytest

from tensorstash.cli import main
from tensorstash.footprint import Estimate, SavedBytes

PROGRAM = """
import tensorstash.reference as ref

weights = [ref.ones((64, 64), requires_grad=True) for _ in range(6)]

class Model(ref.nn.Module):
    def forward(self, hidden):
        for weight in weights:
            hidden = (hidden @ weight).tanh().exp()
        return hidden

def made():
    return Model(), ref.ones((256, 64))

class Named(Model):
    def forward(self, hidden, scale=1.0):
        return super().forward(hidden) * scale

def named():
    return Named(), {"hidden": ref.ones((256, 64)), "scale": 2.0}

def step():
    return 3
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a program, the current one."""
    (tmp_path / "small_program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_the_first_line_is_the_answer(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "small_program:made", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["nbytes"] == sum(row["nbytes"] for row in found["rows"]) >= 12 * 256 * 64 * 4
    assert main(["estimate", "small_program:made"]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("A step saves 832 KiB for backward; it leaves ")
    assert "832 KiB under cpu_offload, 0 B under disk_spill" in first
    assert "416 KiB under cast" in first
    assert second == "Under pack_masks and compress it depends on the values."


def test_a_dictionary_is_a_batch(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "small_program:named", "--json"]) == 0
    named = json.loads(capsys.readouterr().out)
    assert main(["estimate", "small_program:made", "--json"]) == 0
    assert named["nbytes"] >= json.loads(capsys.readouterr().out)["nbytes"]


def test_alike_layers_share_a_line() -> None:
    rows = tuple(SavedBytes(f"layers.{number}.mlp", "float32", 2, 1024) for number in range(3))
    found = str(Estimate((*rows, SavedBytes("head2", "float32", 1, 64)), 3136, {}, True))
    lines = [line.split() for line in found.splitlines()[-2:]]
    assert lines == [["layers.*.mlp", "float32", "6", "3", "KiB"], ["head2", "float32", "1", "64", "B"]]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("small_program", "expected MODULE:CALLABLE"),
        ("small_program:stepp", "did you mean 'step'?"),
        ("no_such_program:step", "no module 'no_such_program'"),
        ("small_program:step", "returns a model and its inputs"),
    ],
)
def test_mistakes_say_what_to_do(program: Path, target: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", target]) == 1
    assert message in capsys.readouterr().err
