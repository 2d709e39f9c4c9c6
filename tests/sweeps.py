"""The table at the end of a run: what sweeps over a framework's operators have compared, and what they left out."""

import json
from collections import Counter
from typing import Any


def summary(sweeps: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the table.

    Args:
        sweeps: what each test counted: ``cases`` as rows, columns and counts, ``runs``, ``stashed``, ``wrong``,
            ``left_out`` by reason, ``share`` and ``seed``.
    """
    cases: Counter[tuple[str, str]] = Counter()
    left_out: Counter[str] = Counter()
    for sweep in sweeps:
        cases.update({(row, column): count for row, column, count in sweep["cases"]})
        left_out.update(sweep["left_out"])
    rows, columns = (list(dict.fromkeys(names)) for names in zip(*cases, strict=True)) if cases else ([], [])
    width = max(map(len, ["operators and dtypes", *rows]))
    lines = [f"share {sweeps[0]['share']}, seed {sweeps[0]['seed']}"]
    lines += ["  ".join([f"{'':{width}}", *(f"{column:>{max(6, len(column))}}" for column in [*columns, "all"])])]
    for row in sorted(rows):
        counts = [cases[row, column] for column in columns]
        cells = [
            f"{count:>{max(6, len(column))}}"
            for column, count in zip([*columns, "all"], [*counts, sum(counts)], strict=True)
        ]
        lines.append("  ".join([f"{row:{width}}", *cells]))
    total = {key: sum(sweep[key] for sweep in sweeps) for key in ("runs", "stashed", "wrong")}
    lines.append(
        f"{sum(cases.values())} cases, {total['runs']} runs under policies, {total['stashed']} tensors moved, "
        f"{total['wrong']} wrong results"
    )
    return [*lines, "left out:", *(f"{count:>6}  {reason}" for reason, count in left_out.most_common())]


def print_sweeps(terminalreporter: Any) -> None:
    """Print the table, if a test has counted anything."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])]
    found = [json.loads(value) for report in reports for name, value in report.user_properties if name == "sweep"]
    if found:
        terminalreporter.section("operators")
        terminalreporter.write_line("\n".join(summary(found)))
