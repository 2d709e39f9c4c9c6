"""Which tests may be skipped, and why: a pytest plugin that fails every other one.

A test that is skipped for want of something pip can install is a test that nobody runs: what it needs belongs in the
extra ``test``.
"""

import sys
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

ALLOWED = {
    reason: kind
    for kind, reasons in {
        "device": ("no CUDA device", "one CUDA device", "needs a CUDA or XPU device"),
        "processor": ("this processor does not flush subnormal numbers to zero",),
        "right to mount": ("needs the right to mount a file system", "may not mount a file system"),
        "file system": (
            "the file system has no direct I/O",
            "needs a file system that takes any address",
            "direct I/O takes whole pages only",
            "/dev/shm is not kept in memory here",
        ),
        "operating system": (
            "moves no memory between mappings",
            "needs POSIX permissions",
            "no file is ever unnamed here",
            "no fork on this system",
            "only glibc keeps freed blocks in its heap",
            "reaches the unlinked file through /proc/self/fd",
            "reads /proc",
            "signals, modes and locks of POSIX",
            "the bare loop needs Linux",
            "the faults are those of POSIX",
            "the system has no SIGKILL",
            "the system has no fork",
            "there is no SIGKILL",
            "there is nothing to advise elsewhere",
            "there is nothing to see elsewhere",
        ),
        "C compiler": ("no C compiler, or no headers of Python", "nothing is compiled here", "no C++ compiler"),
        "build of the framework": (
            "a build with CUDA",
            "this build has no oneDNN",
            "this build has no torch.distributed",
        ),
        "does not apply to this store": (
            "another process cannot be told of a store that has no name",
            "the store has no budget",
            "the store's medium is memory",
        ),
        "Triton's interpreter": (
            "Triton's interpreter is not for several threads",
            "interpreted functions cannot be compiled",
            "this is the inner run",
        ),
    }.items()
    for reason in reasons
}
"""Reasons for which a test may be skipped, word for word, and what each of them lacks."""

if sys.platform != "linux":
    ALLOWED["needs Triton"] = "operating system"  # there are no wheels elsewhere


def reason_of(report: Any) -> str | None:
    """Return why a test or module was skipped; None if it was not, or was expected to fail."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return None
    return str(report.longrepr[2]).removeprefix("Skipped: ")


def judged(report: Any) -> Any:
    """Return the report, a failure if the test was skipped for a reason that is not allowed."""
    reason = reason_of(report)
    if reason is not None and reason not in ALLOWED:
        report.outcome = "failed"
        report.longrepr = (
            f"{report.nodeid} was skipped: {reason!r} is no reason listed in tests/skips.py. "
            f"What pip can install belongs in the extra `test` of pyproject.toml; what it cannot, in that list."
        )
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Judge a test."""
    return judged((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    """Judge a module that skips itself while it is imported."""
    return judged((yield))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what was skipped, and why."""
    print_skips(terminalreporter)


def summary(reports: list[Any]) -> list[str]:
    """Return one line for each reason, the most frequent first: how many, what is lacking, the reason."""
    reasons = Counter(reason for report in reports if (reason := reason_of(report)) is not None)
    return [f"{count:>5}  {ALLOWED[reason]}: {reason}" for reason, count in reasons.most_common()]


def print_skips(terminalreporter: Any) -> None:
    """Print what was skipped, and why."""
    lines = summary(terminalreporter.stats.get("skipped", []))
    if lines:
        terminalreporter.section("skipped, and why")
        terminalreporter.write_line("\n".join(lines))
