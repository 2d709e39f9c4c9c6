"""A store of your own: payloads in a temporary SQLite database, which vanishes with the process."""

import sqlite3
import threading
from collections import deque
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import nn

import tensorstash as ts
from tensorstash.errors import SlotGoneError
from tensorstash.host.arrays import Array
from tensorstash.protocols import Tier


class SqliteStore:
    """One row per payload. Thread-safe: one lock around the one connection."""

    retains: ClassVar[bool] = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gone: deque[int] = deque()
        self._rows = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        self._rows.execute("create table payloads (slot integer primary key, data blob)")

    def put(self, data: Array, /) -> int:
        with self._lock:
            while self._gone:
                self._rows.execute("delete from payloads where slot = ?", (self._gone.popleft(),))
            return self._rows.execute("insert into payloads (data) values (?)", (data.data,)).lastrowid

    def get(self, slot: int, /) -> Array:
        with self._lock:
            row = self._rows.execute("select data from payloads where slot = ?", (slot,)).fetchone()
        if row is None:
            raise SlotGoneError(f"slot {slot} was deleted")
        return np.frombuffer(row[0], np.uint8)

    def delete(self, slot: int, /) -> None:
        # Called from finalizers, perhaps while this thread holds the lock: leave a note for the next put.
        self._gone.append(slot)

    def close(self) -> None:
        with self._lock:
            self._rows.close()


@dataclass(frozen=True, kw_only=True)
class Sqlite:
    """What a configuration says; the store itself is opened by the session."""

    name: ClassVar[str] = "sqlite"
    tier: ClassVar[Tier] = "disk"

    def open(self) -> SqliteStore:
        return SqliteStore()


def main() -> None:
    ts.register("stores", "sqlite", Sqlite)  # a package does this with an entry point instead
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 10))
    x = torch.randn(512, 256)

    model(x).square().mean().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    limits = ts.Limits(in_flight=0)  # nothing behind the computation, so that every run prints the same
    with ts.stash(ts.parse("compress | sqlite"), limits=limits) as session:
        loss = model(x).square().mean()
    loss.backward()

    print(session.stats())
    print("payloads in the database:", session.stats().stored["disk"].tensors)
    found = [parameter.grad for parameter in model.parameters()]
    print("gradients bitwise equal:", all(map(torch.equal, found, expected)))


if __name__ == "__main__":
    main()
