"""The parts of a session that tests look into: its hooks, its budgets, its workers and how long it waits for them."""

import threading
from dataclasses import replace
from typing import Any

from tensorstash.engine.session import Session
from tensorstash.host.budget import ByteBudget
from tensorstash.host.workers import Workers


def session_of(stash: Any) -> Session[Any]:
    """Return what packs and unpacks for a stash."""
    session: Session[Any] = getattr(stash, "_session", stash)
    return session


def in_flight(stash: Any) -> ByteBudget:
    """Return the budget of bytes on their way into stores."""
    return session_of(stash).sender.in_flight


def ahead(stash: Any) -> ByteBudget:
    """Return the budget of bytes read ahead of backward."""
    return session_of(stash).state.prefetcher.budget


def teams(stash: Any) -> tuple[Workers, Workers]:
    """Return the writers and the readers."""
    session = session_of(stash)
    return session.sender.writers, session.state.prefetcher.readers


def set_timeout(stash: Any, timeout_s: float) -> None:
    session = session_of(stash)
    session.limits = replace(session.limits, timeout_s=timeout_s)
    for workers in teams(session):
        workers.timeout_s = timeout_s


def settle(stash: Any) -> None:
    """Wait until nothing is written and nothing is read, also of what was given up."""
    session_of(stash).drain()
    for workers in teams(stash):
        workers.submit(lambda: None).result(60)
        timeout_s, workers.timeout_s = workers.timeout_s, -1
        workers.abandon()
        workers.timeout_s = timeout_s
    for thread in threading.enumerate():
        if getattr(thread, "is_abandoned", False):
            thread.join(60)
            assert not thread.is_alive()
