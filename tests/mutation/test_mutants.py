"""The mutants are still where they were written for, and a run tells those that are noticed from the others."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.mutation import run_mutants

HERE = Path(__file__).resolve().parent
MUTANTS = run_mutants.load()


@pytest.mark.parametrize("path", sorted(HERE.glob("mutants_*.py")), ids=lambda path: path.stem)
def test_every_mutant_is_in_its_file_once(path: Path) -> None:
    stale = []
    for mutant in run_mutants.load(path.name):
        try:
            run_mutants.target(mutant, run_mutants.ROOT)
        except LookupError as error:
            stale.append(str(error))
    assert stale == [], "to be written anew"


def test_mutants_are_of_every_kind_and_name_tests_that_exist() -> None:
    kinds = Counter(mutant.kind for mutant in MUTANTS)
    assert set(kinds) == set(run_mutants.KINDS)
    assert len(MUTANTS) >= 120
    assert all((run_mutants.ROOT / test).exists() for mutant in MUTANTS for test in mutant.tests)
    assert all(mutant.old != mutant.new for mutant in MUTANTS)


FAULT = "return self._by_size[0][0] if"
NO_FAULT = "return  self._by_size[-1][0] if"


def run_rows(folder: Path, *rows: tuple[object, ...]) -> subprocess.CompletedProcess[str]:
    listed = folder / "mutants_few.py"
    listed.write_text(f"MUTANTS = {list(rows)!r}\n")
    return subprocess.run([sys.executable, HERE / "run_mutants.py", "--lists", listed], capture_output=True, text=True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_run_says_what_became_of_each_mutant(tmp_path: Path) -> None:
    begin = "stores/disk/free_space.py", "constant", "return self._by_size[-1][0] if"
    end = ("tests/stores/test_freespace.py",)
    rows = [(*begin, new, end, why) for new in (FAULT, NO_FAULT) for why in ("", "argued for")]
    ran = run_rows(tmp_path, *rows)
    verdicts = [line.split()[0] for line in ran.stdout.splitlines()[:4]]
    assert verdicts == ["killed", "NOTICED", "SURVIVED", "argued"], ran.stdout + ran.stderr
    assert "score: 1 of 2, 50.0 %" in ran.stdout
    assert ran.returncode == 1


def test_a_mutant_whose_text_is_gone_is_an_error(tmp_path: Path) -> None:
    ran = run_rows(tmp_path, ("stores/disk/free_space.py", "constant", "no such text", "", ("tests/stores",)))
    assert ran.returncode == 1
    assert "to be written anew" in ran.stderr
