"""The table at the end of a run: each cell of the matrix of trainers, and what came of it."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table, if a cell was run."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])]
    cells = [(report.outcome, value) for report in reports for name, value in report.user_properties if name == "cell"]
    if cells:
        terminalreporter.section("trainers")
        terminalreporter.write_line("\n".join(f"{outcome}  {cell}" for outcome, cell in cells))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
