"""Random delays in everything that works behind the computation, from a seed."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from tensorstash.host.workers import Future, Workers

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

    def slowly(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call, and let others go first before and after it."""
        self.wait()
        result = call(*arguments)
        self.wait()
        return result


@contextmanager
def delays(dice: Dice) -> Iterator[None]:
    """Delay all workers until the block ends, and let threads interrupt each other as often as the dice say."""
    submit, interval = Workers.submit, sys.getswitchinterval()

    def delayed(workers: Workers, work: Callable[[], Any], **options: Any) -> Future[Any]:
        return submit(workers, partial(dice.slowly, work), **options)

    sys.setswitchinterval(dice.choice([interval, 1e-5]))
    try:
        with patch.object(Workers, "submit", delayed):
            yield
    finally:
        sys.setswitchinterval(interval)


@contextmanager
def released(held: dict[int, Any], dice: Dice) -> Iterator[None]:
    """Let another thread release one value after the other until the block ends."""
    ends = threading.Event()

    def release() -> None:
        while not ends.wait(0.001):
            dice.wait()
            if held and dice.chance(0.5):
                held.popitem()

    thread = threading.Thread(target=release)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
