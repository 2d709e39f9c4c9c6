"""The program of each trainer on their page runs, stashes, and leaves the trainer's model as it was."""

import re
from pathlib import Path

import pytest
import torch

from tests.documents import TRAINERS

PROGRAMS = {
    section.partition("\n")[0]: program
    for section in re.split(r"^## ", TRAINERS.text, flags=re.MULTILINE)
    for program in re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
}


@pytest.mark.filterwarnings("ignore")  # of the trainers
@pytest.mark.parametrize("trainer", PROGRAMS)
def test_the_program_of_a_trainer_runs_and_stashes(
    trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.compiler.reset()
    monkeypatch.chdir(tmp_path)
    exec(compile(PROGRAMS[trainer], trainer, "exec"), {"__name__": "__main__"})
    assert re.search(r"stashed +[1-9]", capsys.readouterr().out)


def test_there_is_a_program_for_each() -> None:
    assert set(PROGRAMS) == {
        "Transformers, TRL and PEFT",
        "Lightning",
        "Accelerate",
        "torch.compile",
        "paddle.Model, fleet and PaddleFormers",
    }
