"""How long a session under test waits, changed while it lives, and waiting until it is at rest."""

import threading
from dataclasses import replace
from typing import Any

from tensorstash.engine.session import Session
from tensorstash.host.workers import Workers


def teams(session: Session[Any]) -> tuple[Workers, Workers]:
    return session._sender.writers, session._state.prefetcher.readers


def set_timeout(session: Session[Any], timeout_s: float) -> None:
    session.limits = replace(session.limits, timeout_s=timeout_s)
    for workers in teams(session):
        workers.timeout_s = workers._pool._timeout_s = timeout_s


def settle(session: Session[Any]) -> None:
    """Wait until nothing is written and nothing is read, also of what was given up."""
    session.drain()
    for workers in teams(session):
        workers.submit(lambda: None).result(60)
        timeout_s, workers._pool._timeout_s = workers._pool._timeout_s, -1
        workers.abandon()
        workers.timeout_s = workers._pool._timeout_s = timeout_s
    for thread in threading.enumerate():
        if getattr(thread, "is_abandoned", False):
            thread.join(60)
            assert not thread.is_alive()
