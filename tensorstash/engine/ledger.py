"""The counters of a session, as it works."""

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any
from weakref import ref

from tensorstash.engine.stats import StageStats, Stats, Tally
from tensorstash.spec import TensorSpec

Sizes = defaultdict[int, "count[int]"]
"""Counters by bytes: each step of one is a tensor of that size, which takes no lock."""

Numbers = list[Any]
"""Those of a stage, as in :class:`~tensorstash.engine.stats.StageStats`; changed under the lock of the ledger."""

# All of it is C, so that no thread comes between.
_sizes: Callable[[], Sizes] = partial(defaultdict, count)
_numbers: Callable[[], Numbers] = partial(list, (0, 0, 0, 0.0, 0, 0.0))


class Ledger:
    """The counters of one session, each with the name of its part of :class:`Stats`. Thread-safe.

    Counters of every tensor take no lock: it is the step of a counter that no thread can disturb. Payloads leave a note
    when they go, by one operation of C: neither an interrupt nor the garbage collector, which may run inside any other
    method, can come between.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stashed, self.deduplicated, self.declined = _sizes(), _sizes(), _sizes()
        self.kept: defaultdict[str, Sizes] = defaultdict(_sizes)
        self.modules: defaultdict[str, Sizes] = defaultdict(_sizes)
        self.without_recipe: defaultdict[str, Sizes] = defaultdict(_sizes)
        self.refused: defaultdict[str, Sizes] = defaultdict(_sizes)
        self._requests, self._forwardings = count(), count()
        self.unpacked = self._requests.__next__
        """Count one request for a tensor; the cheapest call that no thread can disturb."""
        self.forwarded = self._forwardings.__next__
        """Count a request that was answered with the source, before its bytes were captured."""
        self.waits: dict[str, str] = {}
        self.saved_bytes = 0
        self.stages: defaultdict[str, Numbers] = defaultdict(_numbers)
        """Numbers of codecs and stores by name, to which :meth:`add` adds."""
        self.recipes: defaultdict[str, Numbers] = defaultdict(_numbers)
        """Numbers of recipes by rule, to which :meth:`add` adds."""
        self._tiers: defaultdict[str, Numbers] = defaultdict(_numbers)
        self.live: defaultdict[str, int] = defaultdict(int)
        """Bytes of the payloads, by tier, those of :attr:`gone` among them."""
        self._peaks: Counter[str] = Counter()
        self._peak = 0
        self._entries: dict[ref[Any], tuple[str, int]] = {}
        self.gone: deque[ref[Any]] = deque()
        """Payloads that have gone since somebody has looked."""
        self._returned = self.gone.append  # one for all: the collector looks at each

    @property
    def stashed_bytes(self) -> int:
        """Bytes of all tensors whose content went through the plan so far."""
        return _tally(self.stashed).nbytes

    def stored(self, tier: str, payloads: Sequence[tuple[object, int, TensorSpec]], seconds: float = 0.0) -> int:
        """Count payloads in a tier: objects that live as long, their bytes, and the specs of their tensors.

        Return the bytes that they take in the memory that the tensors were in.
        """
        all_left_bytes = 0
        with self.lock:
            live = self.live
            if self.gone:
                self._settle()
            numbers = self._tiers[tier]
            for owner, payload_bytes, spec in payloads:
                self._entries[ref(owner, self._returned)] = tier, payload_bytes
                left_bytes = payload_bytes if tier == ("memory" if spec.device == "cpu" else "device") else 0
                all_left_bytes += left_bytes
                self.saved_bytes += spec.nbytes - left_bytes
                numbers[0] += 1
                numbers[1] += payload_bytes
                numbers[2] += payload_bytes
                live[tier] += payload_bytes
            numbers[3] += seconds
            self._peaks[tier] = max(self._peaks[tier], live[tier])
            self._peak = max(self._peak, sum(live.values()))
        return all_left_bytes

    def tier(self, name: str) -> Numbers:
        """Return the numbers of a tier, which is the last stage of its payloads."""
        return self.stages.setdefault(name, self._tiers[name])

    def add(self, numbers: Numbers, *more: float) -> None:
        """Add to the first of some numbers."""
        with self.lock:
            for place, each in enumerate(more):
                numbers[place] += each

    def settled(self) -> Mapping[str, int]:
        """Return the bytes of the payloads that exist now, by tier."""
        with self.lock:
            self._settle()
        return self.live

    def snapshot(self) -> Stats:
        """Return the counters as they stand."""
        with self.lock:
            self._count_anew()
            kept, stages, recomputed = _tallies(self.kept), _runs(self.stages), _runs(self.recipes)
            deduplicated, stashed = _tally(self.deduplicated), _tally(self.stashed)
            again = (Tally(done.tensors, done.bytes_in) for done in recomputed.values())
            parts = [*kept.values(), deduplicated, stashed, *again]
            return Stats(
                seen=Tally(sum(t.tensors for t in parts), sum(t.nbytes for t in parts)),
                kept=kept,
                deduplicated=deduplicated,
                stashed=stashed,
                declined=_tally(self.declined),
                recomputed=recomputed,
                refused=_tallies(self.refused),
                without_recipe=_tallies(self.without_recipe),
                stages=stages,
                stored={tier: Tally(n[0], n[2]) for tier, n in self._tiers.items() if n[0]},
                saved_bytes=self.saved_bytes,
                modules=_tallies(self.modules),
                live=Tally(len(self._entries), sum(self.live.values())),
                peak_bytes=self._peak,
                peak_bytes_by_tier=dict(self._peaks),
                unpacked=_steps(self._requests),
                forwarded=_steps(self._forwardings),
                waits=dict(self.waits),
            )

    def _settle(self) -> None:
        while self.gone:
            tier, nbytes = self._entries.pop(self.gone.popleft(), ("", 0))
            self.live[tier] -= nbytes

    def _count_anew(self) -> None:
        """Count present payloads, in case an interrupt has come between two steps."""
        self.gone.clear()
        self._entries = {entry: kind for entry, kind in list(self._entries.items()) if entry() is not None}
        live: defaultdict[str, int] = defaultdict(int)
        for tier, nbytes in self._entries.values():
            live[tier] += nbytes
        self.live = live  # at once: a budget reads it without the lock


def _steps(counter: "count[int]") -> int:
    """Return how many steps a counter has taken, without one more."""
    return int(repr(counter).removeprefix("count(").removesuffix(")"))


def _tally(sizes: Sizes) -> Tally:
    steps = {nbytes: _steps(counter) for nbytes, counter in list(sizes.items())}
    return Tally(sum(steps.values()), sum(nbytes * number for nbytes, number in steps.items()))


def _tallies(counted: Mapping[str, Sizes]) -> Mapping[str, Tally]:
    tallies = {reason: _tally(sizes) for reason, sizes in list(counted.items())}
    return {reason: tally for reason, tally in tallies.items() if tally.tensors}


def _runs(runs: Mapping[str, Numbers]) -> Mapping[str, StageStats]:
    """Return the counts that are not zero."""
    return {name: StageStats(*numbers) for name, numbers in list(runs.items()) if any(numbers)}
