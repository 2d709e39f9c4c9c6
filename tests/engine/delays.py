"""Random delays in everything that works behind the computation, and the limits to work under."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar
from unittest.mock import patch

import tensorstash as ts
from tensorstash.host.futures import Future
from tensorstash.host.workers import Workers
from tensorstash.policies import StoreIn
from tensorstash.policies.plan import HookPolicy
from tensorstash.policies.selectors import MinBytes
from tensorstash.protocols import Store, StoreConfig, Tier
from tensorstash.stores import Disk, Memory
from tensorstash.testing.faults import Intercepted

NBYTES = [0, 1, 200, 1000, 20_000, 300_000, 2**28]


class Dice:
    """Random numbers from a seed, for any thread."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._never = threading.Event()
        self.longest_s = self.choice([0.0, 0.0002, 0.001, 0.004])

    def choice(self, options: Any) -> Any:
        with self._lock:
            return self._random.choice(options)

    def chance(self, share: float) -> bool:
        with self._lock:
            return self._random.random() < share

    def wait(self) -> None:
        """Let others go first, for a while or not at all."""
        if self.chance(0.4):
            with self._lock:
                seconds = self._random.uniform(0, self.longest_s)
            self._never.wait(seconds)


@dataclass(frozen=True, eq=False)
class Delayed:
    """A store that takes its time before and after everything it does."""

    name: ClassVar[str] = "delayed"
    inner: StoreConfig
    dice: Dice = field(repr=False)

    @property
    def tier(self) -> Tier:
        return self.inner.tier

    def open(self) -> Store:
        return Intercepted(self.inner.open(), self._run)

    def _run(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        if name not in ("put", "get"):
            return call(*arguments)
        self.dice.wait()
        found = call(*arguments)
        self.dice.wait()
        return found


def policy(dice: Dice, directory: str) -> HookPolicy:
    """Return a policy that loses nothing, over a store that takes its time or as it is."""
    memory, disk = Memory(), Disk(directory=directory)
    store = dice.choice([memory, disk, Memory(budget=5000, then=disk)])
    if dice.chance(0.3):
        return dice.choice(
            [ts.DiskSpill(directory), ts.Compress(min_ratio=1), ts.Compress(min_ratio=1) | ts.DiskSpill(directory)]
        )
    delayed = StoreIn(Delayed(store, dice))
    routed = ts.Route(
        (ts.Rule(~MinBytes(501), ts.Keep()), ts.Rule(~MinBytes(3001), ts.Compress(min_ratio=1))), otherwise=delayed
    )
    return dice.choice([delayed, ts.Compress(min_ratio=1) | delayed, routed])


def limits(dice: Dice) -> ts.Limits:
    """Return limits, nothing and next to nothing among them."""
    return ts.Limits(
        in_flight=dice.choice(NBYTES),
        ahead=dice.choice(NBYTES),
        writers=dice.choice([1, 1, 2, 4]),
        readers=dice.choice([1, 1, 2, 4]),
        timeout_s=120,
    )


@contextmanager
def delays(dice: Dice) -> Iterator[None]:
    """Delay all workers until the block ends, and let threads interrupt each other as often as the dice say."""
    submit, interval = Workers.submit, sys.getswitchinterval()

    def delayed(workers: Workers, work: Callable[[], Any], **options: Any) -> Future[Any]:
        def slowly() -> Any:
            dice.wait()
            result = work()
            dice.wait()
            return result

        return submit(workers, slowly, **options)

    sys.setswitchinterval(dice.choice([interval, 1e-5]))
    try:
        with patch.object(Workers, "submit", delayed):
            yield
    finally:
        sys.setswitchinterval(interval)


class Bag:
    """What a program holds for a while; another thread lets go of one thing after the other."""

    def __init__(self, dice: Dice) -> None:
        self._dice = dice
        self._things: list[Any] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._release)

    def __enter__(self) -> Bag:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def hold(self, thing: Any) -> None:
        """Hold something, perhaps."""
        if self._dice.chance(0.5):
            self._things.append(thing)

    def _release(self) -> None:
        while not self._ends.is_set():
            self._dice.wait()
            self._ends.wait(0.0002)
            if self._things and self._dice.chance(0.5):
                self._things.pop(self._dice.choice(range(len(self._things))))
        self._things.clear()
