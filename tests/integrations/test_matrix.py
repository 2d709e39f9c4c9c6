"""Every trainer, precision and place: tensors are stashed and the parameters are the same, or it is said why not.

``TENSORSTASH_MATRIX=all`` runs every cell; else a sample is run that has
each value with each trainer.
"""

import os
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cells import KINDS, Cell, every_cell
from lazy import Lazy

from tensorstash.errors import TensorStashError, TensorStashWarning

SAMPLE = [
    Cell(trainer, *values)
    for trainer in KINDS
    for values in (
        ("bf16", "before", False, False, 1),
        ("fp32", "before" if trainer == "accelerate" else "callback", True, True, 2),
        ("bf16", "after", True, False, 1),
    )
]
trainers = Lazy("trainers")
CELLS = list(every_cell()) if os.environ.get("TENSORSTASH_MATRIX") == "all" else SAMPLE


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trainers")


@pytest.mark.filterwarnings("ignore")  # of the trainers; what this package says is looked at below
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_every_cell_trains_the_same_or_says_why_not(cell: Cell, directory: Path) -> None:
    expected = trainers.plain(replace(cell, where="plain"), directory)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            trained = trainers.train(cell, directory)
        except TensorStashError as error:
            if cell in SAMPLE:  # none of these is refused
                raise
            pytest.skip(str(error))
    said = [str(one.message) for one in heard if issubclass(one.category, TensorStashWarning)]
    assert all(map(torch.equal, expected, trained.parameters)), "other parameters"
    assert len(expected) == len(trained.parameters)
    assert trained.stats.stashed.tensors > 0 or said, "nothing was stashed, and nothing said"
