"""The command line finds its verbs, runs programs as Python does, and says what a mistake was."""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import tensorstash as ts
from tensorstash.cli import VERBS, main
from tensorstash.cli.program import arguments_of

ROOT = Path(__file__).resolve().parents[2]


def command(*words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run ``python -b -X dev -m tensorstash`` in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    run = [sys.executable, "-b", "-X", "dev", "-m", "tensorstash", *words]
    return subprocess.run(run, capture_output=True, text=True, env=environment, timeout=880)


def test_every_verb_is_a_file_and_every_file_with_options_a_verb() -> None:
    folder = ROOT / "tensorstash" / "cli"
    modules = {path.stem: import_module(f"tensorstash.cli.{path.stem}") for path in folder.glob("[!_]*.py")}
    assert list(VERBS) == sorted(VERBS)
    assert {name for name, module in modules.items() if hasattr(module, "parsed")} == set(VERBS)


def test_without_words_the_verbs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    listed = capsys.readouterr().err
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == listed
    for verb in VERBS:
        assert f"\n  {verb} " in listed
    assert max(map(len, listed.splitlines())) <= 120


def test_the_verbs_are_listed_where_python_drops_docstrings() -> None:
    help_of = [sys.executable, "-OO", "-m", "tensorstash", "--help"]
    done = subprocess.run(help_of, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split("\n\n")[1:2] == ["\n".join(f"  {verb}" for verb in VERBS)], done.stdout + done.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([verb, "--help"])
    assert left.value.code == 0
    assert f"usage: tensorstash {verb}" in capsys.readouterr().out


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tensorstash {ts.__version__}\n"


@pytest.mark.parametrize(
    ("word", "cure"), [("doctr", "did you mean 'doctor'"), ("no_such_program.py", "there is no such file")]
)
def test_a_word_that_is_no_verb_and_no_program_is_said_with_the_verbs(
    word: str, cure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word, "--json"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"tensorstash: {word!r}: ")
    assert cure in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run"], "no program is named"),
        (["run", "-m"], "no program is named"),
        (["run", "-X", "dev", "train.py"], "options of Python stand before -m: python -X -m"),
        (["run", "-c", "print(1)"], "write the program into a file, or name a module behind -m"),
        (["run", "no_such_program.py"], "there is no file 'no_such_program.py'"),
        (["run", "--budget"], "argument --budget: expected one argument"),
        (["run", "--policy", "keep", "--policy=compress", "x.py"], "join the steps by |, or let tensorstash compare"),
        (["compare"], "no program is named"),
        (["compare", "train.py", "-m", "train"], "no program is named"),
        (["compare", "train.py", "--steps", "1"], "expected 2 or more"),
        (["compare", "no_such_program.py"], "there is no file 'no_such_program.py'"),
    ],
)
def test_a_command_without_a_program_or_with_a_mistake_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2
    assert message in capsys.readouterr().err


PROGRAM = """
import sys
print("before", "torch" in sys.modules)
import torch
layer = torch.nn.Linear(256, 512)
loss = layer(torch.ones(256, 256)).tanh().square().mean()
loss.backward()
print(sys.argv[1:], __name__, sys.path[0], sys.flags.bytes_warning)
sys.exit(3)
"""


def test_a_script_that_nobody_edits_follows_a_policy(tmp_path: Path) -> None:
    script, settings, written = tmp_path / "train.py", tmp_path / "settings.toml", tmp_path / "stats.json"
    script.write_text(PROGRAM)
    settings.write_text('policy = "compress:min_ratio=1"\nmin_bytes = "300KiB"\n')
    options = ("--stats", str(written), "--policy", str(settings))
    done = command("run", *options, str(script), "--policy", "its own", TENSORSTASH_POLICY="keep")
    assert done.returncode == 3, done.stderr
    assert done.stdout.splitlines() == ["before False", f"['--policy', 'its own'] __main__ {tmp_path} 1"]
    assert "tensorstash: torch: stashed 512 KiB of " in done.stderr
    stats = json.loads(written.read_text())
    assert stats["stashed"]["tensors"] == 1, stats
    assert any("min_bytes" in reason for reason in stats["kept"]), stats


def test_a_budget_without_a_policy_takes_that_of_the_machine() -> None:
    assert arguments_of({"TENSORSTASH_BUDGET": "6GiB"}) == {"policy": "auto", "budget": "6GiB"}
    assert arguments_of({"TENSORSTASH_POLICY": "keep", "TENSORSTASH_BUDGET": "auto"})["budget"] == "auto"
    assert arguments_of({}) == {}


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--budget", "6", "--budget: got '6', expected a size with a unit"),
        ("--policy", "qantize", "--policy: unknown policy 'qantize'; did you mean 'quantize'?"),
        ("--policy", "nowhere.toml", "--policy: nowhere.toml: No such file"),
        ("TENSORSTASH_POLICY", "compres", "TENSORSTASH_POLICY: unknown policy 'compres'; did you mean 'compress'?"),
    ],
)
def test_a_mistake_in_an_option_is_found_before_the_program_begins(
    option: str, value: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not option.startswith("--"):
        monkeypatch.setenv(option, value)
    assert main(["run", *([option, value] if option.startswith("--") else []), __file__]) == 1
    assert message in capsys.readouterr().err


def test_a_policy_without_a_framework_is_said_to_have_no_effect(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text("import sys; print(sys.argv[1:], sys._xoptions['dev'])")
    done = command(str(script), "x", TENSORSTASH_POLICY="keep")
    assert done.stdout == "['x'] True\n"
    assert "the policy had no effect" in done.stderr
