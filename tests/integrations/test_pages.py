"""The program on each page about a trainer runs, stashes, and leaves the trainer's model as it was."""

import re
from pathlib import Path

import pytest
import torch

from tests.documents import TRAINERS, Document


@pytest.mark.filterwarnings("ignore")  # of the trainers
@pytest.mark.parametrize("page", TRAINERS, ids=lambda page: Path(page.name).stem)
def test_the_program_of_a_page_runs_and_stashes(
    page: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.compiler.reset()
    monkeypatch.chdir(tmp_path)
    (program,) = page.blocks("python")
    exec(compile(program, page.name, "exec"), {"__name__": "__main__"})
    assert re.search(r"stashed +[1-9]", capsys.readouterr().out)


def test_there_is_a_page_for_each() -> None:
    assert {Path(page.name).stem for page in TRAINERS} == {
        "accelerate",
        "lightning",
        "paddle",
        "torch_compile",
        "transformers",
    }
