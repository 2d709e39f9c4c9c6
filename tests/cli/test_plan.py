"""A budget is planned, and a model estimated, from the command line."""

import json
from pathlib import Path

import pytest

import tensorstash as ts
from tensorstash.cli import main

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

def step():
    made()[0](made()[1]).sum().backward()

wrong = 3
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a program, the current one."""
    (tmp_path / "small_program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_plan_is_printed_saved_drawn_and_traced(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    words = ["plan", "small_program:made", "--budget", "600KiB", "--min-bytes", "4KiB"]
    assert main([*words, "--save", "plan.toml", "--plot", "plan.png", "--trace", "trace.json"]) == 0
    printed = capsys.readouterr().out
    assert "planned: peak" in printed
    assert "smallest budget" in printed
    assert isinstance(ts.load(program / "plan.toml"), ts.Route)
    assert (program / "plan.png").read_bytes().startswith(b"\x89PNG")
    events = json.loads((program / "trace.json").read_text())["traceEvents"]
    tracks = {event["args"]["name"]: event["tid"] for event in events if event["ph"] == "M"}
    busy = {event["tid"] for event in events if event["ph"] == "X"}
    assert {tracks["compute"], tracks["codecs"]} <= busy
    assert any(event["ph"] == "C" and event["args"]["kept"] > event["args"]["planned"] for event in events)
    assert all(event.get("dur", 0) >= 0 for event in events)

    assert main([*words, "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["status"] == "planned"
    assert len(plain["digest"]) == 16


def test_what_cannot_be_held_ends_with_status_1_and_the_size_that_can(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.warns(ts.TensorStashWarning, match="smallest budget that works is"):
        assert main(["plan", "small_program:made", "--budget", "8KiB", "--min-bytes", "4KiB", "--steps", "2"]) == 1
    assert "the smallest budget that works is" in capsys.readouterr().out


def test_a_model_is_estimated(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "small_program:made", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["nbytes"] == sum(row["nbytes"] for row in found["rows"]) >= 12 * 256 * 64 * 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("plan", "small_program", "--budget", "1MiB"), "expected MODULE:CALLABLE"),
        (("plan", "small_program:stepp", "--budget", "1MiB"), "did you mean 'step'?"),
        (("plan", "no_such_program:step", "--budget", "1MiB"), "no module 'no_such_program'"),
        (("plan", "small_program:step", "--budget", "1"), "expected a size with a unit"),
        (("plan", "small_program:step", "--budget", "budget:allow=lossles"), "unknown tier 'lossles'"),
        (("estimate", "small_program:step"), "returns a model and its inputs"),
    ],
)
def test_mistakes_say_what_to_do(
    program: Path, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    assert message in capsys.readouterr().err
