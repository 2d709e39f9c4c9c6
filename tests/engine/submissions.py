"""What sessions give to their workers, so that a test can wait until it is done without waiting for anything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tensorstash.host.workers import Future, Workers


class Submissions:
    """Every piece of work that any workers were given since :meth:`watch`."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []

    @classmethod
    def watch(cls, monkeypatch: pytest.MonkeyPatch) -> Submissions:
        """Watch all workers until the test ends."""
        found, submit = cls(), Workers.submit

        def submitted(workers: Workers, work: Callable[[], Any], **options: Any) -> Future[Any]:
            future = submit(workers, work, **options)
            # What is done is of no interest, and its result may be large.
            found.futures = [known for known in found.futures if not known.done()]
            found.futures.append(future)
            return future

        monkeypatch.setattr(Workers, "submit", submitted)
        return found

    def wait(self) -> None:
        """Wait until all of it has come to its end, well or not."""
        for future in list(self.futures):
            future.outcome(60)
