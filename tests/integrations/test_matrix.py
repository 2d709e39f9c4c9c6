"""Every trainer, precision and place: tensors are stashed and parameters the same to the bit, or it is said why not.

``TENSORSTASH_MATRIX=all`` runs every cell, and prints the table; else a sample that has each value with each trainer.
"""

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from trainers import Cell, every_cell, plain, train, without_policy

from tensorstash.errors import TensorStashError, TensorStashWarning

SAMPLE = [
    Cell(trainer, *values)
    for trainer in ("transformers", "trl", "accelerate", "lightning")
    for values in (
        ("bf16", "before", False, False, 1),
        ("fp32", "callback", True, True, 2),
        ("bf16", "callback", True, False, 1),
    )
]
CELLS = list(every_cell()) if os.environ.get("TENSORSTASH_MATRIX") == "all" else SAMPLE


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Collect a line per cell, and print them in the end."""
    lines: list[str] = []
    yield lines
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and len(CELLS) > len(SAMPLE):
        reporter.write_line("\n" + "\n".join(lines))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trainers")


@pytest.mark.filterwarnings("ignore")  # of the trainers; what this package says is looked at below
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_every_cell_trains_the_same_or_says_why_not(cell: Cell, table: list[str], directory: Path) -> None:
    expected = plain(without_policy(cell), directory)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            trained = train(cell, directory)
        except TensorStashError as error:
            table.append(f"{cell}: {error}")
            return
    said = [str(one.message) for one in heard if issubclass(one.category, TensorStashWarning)]
    stashed = trained.stats.stashed
    table.append(f"{cell}: {stashed.tensors} stashed of {trained.stats.seen.tensors}; {'; '.join(said) or 'same bits'}")
    assert all(map(torch.equal, expected, trained.parameters)), "other parameters"
    assert len(expected) == len(trained.parameters)
    assert stashed.tensors > 0 or said, "nothing was stashed, and nothing said"
