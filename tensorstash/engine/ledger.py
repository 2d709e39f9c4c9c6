"""The counters of a session, as it works."""

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import Any, TypeVar
from weakref import ref

from tensorstash.engine.stats import StageStats, Stats, Tally
from tensorstash.host.forks import renew_after_fork
from tensorstash.spec import TensorSpec

T = TypeVar("T")


class Runs:
    """How often something was done both ways. Whoever does it adds to the numbers, under the lock."""

    __slots__ = ("__weakref__", "bytes_in", "bytes_out", "loads", "lock", "seconds_back", "seconds_in", "tensors")

    def __init__(self) -> None:
        self.tensors = self.bytes_in = self.bytes_out = self.loads = 0
        self.seconds_in = self.seconds_back = 0.0
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Make the lock anew."""
        self.lock = threading.Lock()

    def count_in(self, bytes_in: int, bytes_out: int, seconds: float) -> None:
        """Count one tensor on the way in."""
        with self.lock:
            self.tensors += 1
            self.bytes_in += bytes_in
            self.bytes_out += bytes_out
            self.seconds_in += seconds

    def count_back(self, seconds: float) -> None:
        """Count one load."""
        with self.lock:
            self.loads += 1
            self.seconds_back += seconds

    def stats(self) -> StageStats:
        """Return the numbers as they stand."""
        with self.lock:
            parts = self.tensors, self.bytes_in, self.bytes_out, self.seconds_in, self.loads, self.seconds_back
            return StageStats(*parts)


class _Sum:
    """What a tally is of, as it grows."""

    __slots__ = ("nbytes", "tensors")

    def __init__(self) -> None:
        self.tensors = 0
        self.nbytes = 0

    def add(self, tensors: int, nbytes: int) -> None:
        """Count tensors more, or fewer."""
        self.tensors += tensors
        self.nbytes += nbytes

    def tally(self) -> Tally:
        """Return it as it stands."""
        return Tally(self.tensors, self.nbytes)


Steps = defaultdict[str, defaultdict[int, "count[int]"]]
"""Counters by reason and bytes, each step of which is a tensor."""


_counters: Callable[[], defaultdict[int, "count[int]"]] = partial(defaultdict, count)
# All of it is C, so that no thread comes between.


class Ledger:
    """The counters of one session. Thread-safe.

    What is counted of every tensor takes no lock: it is the step of a counter that no thread can disturb. Payloads are
    counted for as long as the object lives that :meth:`stored` is told of, and leave a note when they go, by one
    operation of C: neither an interrupt nor the garbage collector, which may run inside any other method, can come
    between.
    """

    def __init__(self) -> None:
        self.after_fork()
        renew_after_fork(self)
        self._looks: Counter[tuple[int, int]] = Counter()
        self._declined = _Sum()
        self._stages: dict[str, Runs] = {}
        self._recomputed: dict[str, Runs] = {}
        self._refused: dict[str, Tally] = {}
        self._stored: defaultdict[str, _Sum] = defaultdict(_Sum)
        self.saved_bytes = 0
        """Bytes by which payloads so far were smaller than their tensors; all of a tensor's where one is elsewhere."""
        self._live: defaultdict[str, _Sum] = defaultdict(_Sum)
        self._live_bytes = 0
        self._peaks: dict[str, int] = {}
        self._peak = 0
        self._waits: dict[str, str] = {}
        self._forwardings = 0
        self._unpackings = count()
        self._snapshots = 0
        self.unpacked = self._unpackings.__next__
        """Count one request for a tensor; the cheapest call that no thread can disturb."""
        self.kept: Steps = defaultdict(_counters)
        """By reason and bytes: each step of such a counter is a tensor that was kept."""
        self.stashed = _counters()
        """By bytes: each step of such a counter is a tensor whose content went through the plan."""
        self.modules: Steps = defaultdict(_counters)
        """The same by module, for tensors of which that is known."""
        self.deduplicated = _counters()
        """By bytes: each step of such a counter is a tensor that shares a payload."""
        self.without_recipe: Steps = defaultdict(_counters)
        """The same for tensors that are not made again since there is no recipe."""
        self._entries: dict[ref[Any], tuple[str, int]] = {}
        self._gone: deque[ref[Any]] = deque()
        self._returned = self._gone.append  # one for all: the collector looks at each

    def after_fork(self) -> None:
        """Make the lock anew."""
        self._lock = threading.Lock()

    @property
    def stashed_bytes(self) -> int:
        """Bytes of all tensors whose content went through the plan so far."""
        with self._lock:
            return self._tally(self.stashed).nbytes

    def declined(self, nbytes: int) -> None:
        """Count a stashed tensor that is kept after all, since its content does not shrink."""
        with self._lock:
            self._declined.add(1, nbytes)

    def copies_wait(self, device: str, why: str) -> None:
        """Note that copies of a device make the program wait."""
        with self._lock:
            self._waits[device] = why

    def forwarded(self) -> None:
        """Count a request that was answered with the source, before its bytes were captured."""
        with self._lock:
            self._forwardings += 1

    def stored(self, owner: object, tier: str, payload_bytes: int, spec: TensorSpec) -> int:
        """Count a payload that was put into ``tier``.

        Args:
            owner: what lives as long as it exists.
            tier: where it is.
            payload_bytes: its size.
            spec: of its tensor.

        Returns:
            Bytes that it takes in the memory that the tensor was in.
        """
        is_same_memory = tier == ("memory" if spec.device == "cpu" else "device")
        left_bytes = payload_bytes if is_same_memory else 0
        entry = ref(owner, self._returned)
        with self._lock:
            if self._gone:
                self._settle()
            self._entries[entry] = tier, payload_bytes
            self.saved_bytes += spec.nbytes - left_bytes
            live = self._live[tier]
            self._stored[tier].add(1, payload_bytes)
            live.add(1, payload_bytes)
            self._live_bytes += payload_bytes
            self._peaks[tier] = max(self._peaks.get(tier, 0), live.nbytes)
            self._peak = max(self._peak, self._live_bytes)
        return left_bytes

    def stage(self, name: str) -> Runs:
        """Return the numbers of all stages of a name, to which these add."""
        return _of(self._stages, name)

    def recipe(self, rule: str) -> Runs:
        """Return the numbers of all recipes of a rule, to which these add."""
        return _of(self._recomputed, rule)

    def refused(self, why: str, nbytes: int) -> None:
        """Count a tensor that is not made again though there is a recipe."""
        with self._lock:
            self._refused[why] = self._refused.get(why, Tally()).plus(nbytes)

    def snapshot(self) -> Stats:
        """Return the counters as they stand."""
        with self._lock:
            self._count_anew()
            kept = self._tallies(self.kept)
            unpacked = next(self._unpackings) - self._snapshots
            self._snapshots += 1
            stages, recomputed = _runs(self._stages), _runs(self._recomputed)
            again = (Tally(done.tensors, done.bytes_in) for done in recomputed.values())
            deduplicated, stashed = self._tally(self.deduplicated), self._tally(self.stashed)
            parts = [*kept.values(), deduplicated, stashed, *again]
            return Stats(
                seen=Tally(sum(t.tensors for t in parts), sum(t.nbytes for t in parts)),
                kept=MappingProxyType(kept),
                deduplicated=deduplicated,
                stashed=stashed,
                declined=self._declined.tally(),
                recomputed=recomputed,
                refused=MappingProxyType(dict(self._refused)),
                without_recipe=MappingProxyType(self._tallies(self.without_recipe)),
                stages=stages,
                stored=_tallies(self._stored),
                saved_bytes=self.saved_bytes,
                modules=MappingProxyType(self._tallies(self.modules)),
                live=Tally(len(self._entries), self._live_bytes),
                peak_bytes=self._peak,
                peak_bytes_by_tier=MappingProxyType(dict(self._peaks)),
                unpacked=unpacked,
                forwarded=self._forwardings,
                waits=MappingProxyType(dict(self._waits)),
            )

    def _tallies(self, counted: Steps) -> dict[str, Tally]:
        tallies = {reason: self._tally(counters) for reason, counters in list(counted.items())}
        return {reason: tally for reason, tally in tallies.items() if tally.tensors}

    def _tally(self, counters: Mapping[int, "count[int]"]) -> Tally:
        tensors = total = 0
        for nbytes, steps in list(counters.items()):
            # Looking at a counter is a step, too.
            found = next(steps) - self._looks[id(counters), nbytes]
            self._looks[id(counters), nbytes] += 1
            tensors += found
            total += found * nbytes
        return Tally(tensors, total)

    def bytes_in(self, tiers: tuple[str, ...]) -> int:
        """Return the bytes of the payloads that exist now in some tiers."""
        if self._gone:
            with self._lock:
                self._settle()
        live, total = self._live, 0
        for tier in tiers:  # no generator: it is asked several times for each tensor
            if tier in live:
                total += live[tier].nbytes
        return total

    def _settle(self) -> None:
        while self._gone:
            tier, nbytes = self._entries.pop(self._gone.popleft(), ("", 0))
            if tier:
                self._live[tier].add(-1, -nbytes)
                self._live_bytes -= nbytes

    def _count_anew(self) -> None:
        """Count what exists, in case an interrupt has come between two steps."""
        self._gone.clear()
        self._entries = {entry: kind for entry, kind in list(self._entries.items()) if entry() is not None}
        live: defaultdict[str, _Sum] = defaultdict(_Sum)
        for tier, nbytes in self._entries.values():
            live[tier].add(1, nbytes)
        self._live = live
        self._live_bytes = sum(sums.nbytes for sums in live.values())


def _tallies(sums: Mapping[str, _Sum]) -> Mapping[str, Tally]:
    return MappingProxyType({name: some.tally() for name, some in sums.items()})


def _of(runs: dict[str, Runs], name: str) -> Runs:
    return runs.get(name) or runs.setdefault(name, Runs())  # another thread may come first


def _runs(runs: Mapping[str, Runs]) -> Mapping[str, StageStats]:
    """Return what was done at all."""
    found = {name: some.stats() for name, some in list(runs.items())}
    return MappingProxyType({name: stats for name, stats in found.items() if stats != StageStats()})
