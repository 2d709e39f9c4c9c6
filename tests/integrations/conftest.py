"""The table at the end of a run: each cell of the matrix of trainers, and what came of it."""

from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table, if a cell was run."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])]
    cells = [(report.outcome, value) for report in reports for name, value in report.user_properties if name == "cell"]
    if cells:
        terminalreporter.section("trainers")
        terminalreporter.write_line("\n".join(f"{outcome}  {cell}" for outcome, cell in cells))
