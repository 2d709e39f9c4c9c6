"""The counters of a session, as it works."""

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Hashable
from itertools import count
from types import MappingProxyType
from typing import TypeVar
from weakref import ref

from tensorstash.abilities import Backend
from tensorstash.engine.stats import StageStats, Stats, Tally
from tensorstash.host.forks import renew_after_fork
from tensorstash.spec import TensorSpec

T = TypeVar("T")


class Counted:
    """Keeps a payload among those that exist, as long as it lives itself."""

    __slots__ = ("__weakref__",)


class _Entry(ref[Counted]):
    """What a ledger knows of a payload. Equal only to itself."""

    __slots__ = ("nbytes", "tier")
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    nbytes: int
    tier: str


class _Runs:
    """How often something was done both ways, as it is counted."""

    __slots__ = ("bytes_in", "bytes_out", "loads", "seconds_back", "seconds_in", "tensors")

    def __init__(self) -> None:
        self.tensors = self.bytes_in = self.bytes_out = self.loads = 0
        self.seconds_in = self.seconds_back = 0.0

    def there(self, bytes_in: int, bytes_out: int, seconds: float) -> None:
        """Count one run on the way in."""
        self.tensors += 1
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out
        self.seconds_in += seconds

    def back(self, seconds: float) -> None:
        """Count one run on the way back."""
        self.loads += 1
        self.seconds_back += seconds

    def stats(self) -> StageStats:
        """Return the numbers as they stand."""
        return StageStats(self.tensors, self.bytes_in, self.bytes_out, self.seconds_in, self.loads, self.seconds_back)


class Movable:
    """Counts what a policy could move in one step, each content once. Thread-safe."""

    __slots__ = ("_contents", "tally")

    def __init__(self) -> None:
        self.tally = Tally()
        self._contents: set[Hashable] | None = set()

    @property
    def is_counting(self) -> bool:
        """Whether the first step that saves anything still lasts."""
        return self._contents is not None

    def look(self, tensor: T, backend: Backend[T], min_bytes: int, *, is_over: bool) -> None:
        """Count a saved tensor, if a policy could move it and its content was not counted before.

        Args:
            tensor: that autograd saves.
            backend: of its framework.
            min_bytes: smaller ones are not moved.
            is_over: whether backward has begun, which ends the step.
        """
        contents = self._contents
        if is_over:
            self.step_ended()
        elif contents is not None and backend.keep_reason(tensor) is None:
            spec = backend.spec(tensor)
            # A token of a storage is no other storage's while it is alive, and so are kept here those of one step.
            content = *backend.storage(tensor), spec.order.block, spec.dtype, backend.version(tensor)
            if spec.nbytes >= min_bytes and content not in contents:
                contents.add(content)
                self.tally = self.tally.plus(spec.nbytes)

    def step_ended(self) -> None:
        """Count no more, if anything was counted."""
        if self.tally.tensors:
            self._contents = None


class Ledger:
    """The counters of one session. Thread-safe.

    What is counted on the way of a kept tensor takes no lock: it is the step of a counter that no thread can disturb.
    Payloads are counted for as long as somebody refers to what :meth:`stored` returns, and leave a note when they go,
    by one operation of C: neither an interrupt nor the garbage collector, which may run inside any other method, can
    come between.
    """

    def __init__(self) -> None:
        self.after_fork()
        renew_after_fork(self)
        self._looks: Counter[tuple[str, int]] = Counter()
        self._deduplicated = Tally()
        self._stashed = Tally()
        self._declined = Tally()
        self._stages: defaultdict[str, _Runs] = defaultdict(_Runs)
        self._recomputed: defaultdict[str, _Runs] = defaultdict(_Runs)
        self._refused: dict[str, Tally] = {}
        self._stored: dict[str, Tally] = {}
        self._saved = 0
        self._modules: dict[str, Tally] = {}
        self.movable = Movable()
        self._live: dict[str, Tally] = {}
        self._peaks: dict[str, int] = {}
        self._peak = 0
        self._waits: dict[str, str] = {}
        self._forwardings = 0
        self._unpackings = count()
        self._snapshots = 0
        self.unpacked = self._unpackings.__next__
        """Count one request for a tensor; the cheapest call that no thread can disturb."""
        self.kept: defaultdict[str, defaultdict[int, count[int]]] = defaultdict(lambda: defaultdict(count))
        """By reason and bytes: each step of such a counter is a tensor that was kept."""
        self._entries: set[_Entry] = set()
        self._gone: deque[_Entry] = deque()

    def after_fork(self) -> None:
        """Make the lock anew."""
        self._lock = threading.Lock()

    def deduplicated(self, nbytes: int) -> None:
        """Count a tensor that shares a payload."""
        with self._lock:
            self._deduplicated = self._deduplicated.plus(nbytes)

    @property
    def stashed_bytes(self) -> int:
        """Bytes of all tensors whose content went through the plan so far."""
        return self._stashed.nbytes

    def stashed(self, nbytes: int, module: str = "") -> None:
        """Count a tensor whose content goes through the plan.

        Args:
            nbytes: of its elements.
            module: that it belongs to, if that is known.
        """
        with self._lock:
            self._stashed = self._stashed.plus(nbytes)
            if module:
                self._modules[module] = self._modules.get(module, Tally()).plus(nbytes)

    def declined(self, nbytes: int) -> None:
        """Count a stashed tensor that is kept after all, since its content does not shrink."""
        with self._lock:
            self._declined = self._declined.plus(nbytes)

    def copies_wait(self, device: str, why: str) -> None:
        """Note that copies of a device make the program wait."""
        with self._lock:
            self._waits[device] = why

    def forwarded(self) -> None:
        """Count a request that was answered with the source, before its bytes were captured."""
        with self._lock:
            self._forwardings += 1

    def stored(self, tier: str, payload_bytes: int, spec: TensorSpec) -> Counted:
        """Count a payload that was put into ``tier``, and exists as long as what is returned.

        Args:
            tier: where it is.
            payload_bytes: its size.
            spec: of its tensor.
        """
        counted = Counted()
        entry = _Entry(counted, self._gone.append)
        entry.tier, entry.nbytes = tier, payload_bytes
        with self._lock:
            self._settle()
            self._entries.add(entry)
            is_same_memory = tier == ("memory" if spec.device == "cpu" else "device")
            self._saved += spec.nbytes - payload_bytes if is_same_memory else spec.nbytes
            self._stored[tier] = self._stored.get(tier, Tally()).plus(payload_bytes)
            live = self._live[tier] = self._live.get(tier, Tally()).plus(payload_bytes)
            self._peaks[tier] = max(self._peaks.get(tier, 0), live.nbytes)
            self._peak = max(self._peak, sum(tally.nbytes for tally in self._live.values()))
        return counted

    def stage_in(self, name: str, bytes_in: int, bytes_out: int, seconds: float) -> None:
        """Count one run of a stage on the way in."""
        with self._lock:
            self._stages[name].there(bytes_in, bytes_out, seconds)

    def stage_back(self, name: str, seconds: float) -> None:
        """Count one run of a stage on the way back."""
        with self._lock:
            self._stages[name].back(seconds)

    def recomputed(self, rule: str, nbytes: int, seconds: float) -> None:
        """Count a tensor that is made again when it is needed."""
        with self._lock:
            self._recomputed[rule].there(nbytes, 0, seconds)

    def made_again(self, rule: str, seconds: float) -> None:
        """Count one run of a recipe."""
        with self._lock:
            self._recomputed[rule].back(seconds)

    def refused(self, why: str, nbytes: int) -> None:
        """Count a tensor that is not made again though there is a recipe."""
        with self._lock:
            self._refused[why] = self._refused.get(why, Tally()).plus(nbytes)

    def snapshot(self) -> Stats:
        """Return the counters as they stand."""
        with self._lock:
            self._count_anew()
            kept = {reason: tally for reason in list(self.kept) if (tally := self._tally(reason)).tensors}
            unpacked = next(self._unpackings) - self._snapshots
            self._snapshots += 1
            again = [Tally(done.tensors, done.bytes_in) for done in self._recomputed.values()]
            parts = [*kept.values(), self._deduplicated, self._stashed, *again]
            return Stats(
                seen=Tally(sum(t.tensors for t in parts), sum(t.nbytes for t in parts)),
                kept=MappingProxyType(kept),
                deduplicated=self._deduplicated,
                stashed=self._stashed,
                declined=self._declined,
                recomputed=MappingProxyType({rule: done.stats() for rule, done in self._recomputed.items()}),
                refused=MappingProxyType(dict(self._refused)),
                stages=MappingProxyType({name: done.stats() for name, done in self._stages.items()}),
                stored=MappingProxyType(dict(self._stored)),
                saved_bytes=self._saved,
                movable=self.movable.tally,
                modules=MappingProxyType(dict(self._modules)),
                live=Tally(sum(t.tensors for t in self._live.values()), sum(t.nbytes for t in self._live.values())),
                peak_bytes=self._peak,
                peak_bytes_by_tier=MappingProxyType(dict(self._peaks)),
                unpacked=unpacked,
                forwarded=self._forwardings,
                waits=MappingProxyType(dict(self._waits)),
            )

    def _tally(self, reason: str) -> Tally:
        tensors = total = 0
        for nbytes, steps in list(self.kept[reason].items()):
            # Looking at a counter is a step, too.
            found = next(steps) - self._looks[reason, nbytes]
            self._looks[reason, nbytes] += 1
            tensors += found
            total += found * nbytes
        return Tally(tensors, total)

    def bytes_in(self, tiers: tuple[str, ...]) -> int:
        """Return the bytes of the payloads that exist now in some tiers."""
        with self._lock:
            self._settle()
            return sum(self._live[tier].nbytes for tier in tiers if tier in self._live)

    def _settle(self) -> None:
        while self._gone:
            entry = self._gone.popleft()
            if entry in self._entries:
                self._entries.discard(entry)
                live = self._live[entry.tier]
                self._live[entry.tier] = Tally(live.tensors - 1, live.nbytes - entry.nbytes)

    def _count_anew(self) -> None:
        """Count what exists, in case an interrupt has come between two steps."""
        self._gone.clear()
        self._entries = {entry for entry in list(self._entries) if entry() is not None}
        live = dict.fromkeys(self._live, Tally())
        for entry in self._entries:
            live[entry.tier] = live[entry.tier].plus(entry.nbytes)
        self._live = live
