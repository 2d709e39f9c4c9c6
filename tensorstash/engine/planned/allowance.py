"""How many tensors of each size may pass without being looked at, where everything fits."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import repeat
from operator import length_hint

from tensorstash.engine.ledger import Ledger
from tensorstash.engine.payloads.ways import POLICY


class Allowance:
    """As many tensors of each size as a measured step had; one more is a step that nobody knows.

    Args:
        ledger: counts what passes.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._kept = ledger.kept
        self.counters: dict[int, Iterator[None]] = {}
        """By size, steps that are left; the C extension takes them."""
        self._sizes: Mapping[int, int] = {}
        self._passed: Counter[int] = Counter()

    def refill(self, sizes: Mapping[int, int]) -> None:
        """Begin a step that may have so many tensors of each size."""
        self.count()
        self.counters.clear()
        self._passed.clear()
        self._sizes = sizes
        for nbytes, count in sizes.items():
            self.counters[nbytes] = repeat(None, count)

    def take(self, nbytes: int) -> bool:
        """Whether one of such a size is left, which is taken."""
        return next(self.counters.get(nbytes, iter(())), POLICY) is None

    def count(self) -> None:
        """Count what has passed since this was last called."""
        for nbytes, counter in self.counters.items():
            passed = self._sizes[nbytes] - length_hint(counter)
            for _ in range(passed - self._passed[nbytes]):
                next(self._kept[POLICY][nbytes])
            self._passed[nbytes] = passed

    def end(self) -> int:
        """Let nothing pass any more; return the bytes that have in this step."""
        self.count()
        passed = sum(size * count for size, count in self._passed.items())
        self.counters.clear()
        self._passed.clear()
        return passed
