"""What a session did, counted: a frozen value for the user, and the ledger it is read from."""

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from itertools import count
from types import MappingProxyType
from typing import Any, TypeVar
from weakref import ref

from tensorstash.host.forks import renew_after_fork
from tensorstash.sizes import format_bytes


@dataclass(frozen=True, slots=True)
class Tally:
    """A number of tensors and their bytes.

    Args:
        tensors: how many.
        nbytes: bytes of their elements.
    """

    tensors: int = 0
    nbytes: int = 0

    def __sub__(self, earlier: "Tally") -> "Tally":
        return Tally(self.tensors - earlier.tensors, self.nbytes - earlier.nbytes)

    def plus(self, nbytes: int) -> "Tally":
        """Return the tally with one more tensor."""
        return Tally(self.tensors + 1, self.nbytes + nbytes)


@dataclass(frozen=True, slots=True)
class StageStats:
    """One codec or store, both ways.

    Args:
        tensors: payloads that went in.
        bytes_in: bytes before the stage, on the way in.
        bytes_out: bytes after the stage, on the way in.
        seconds_in: time spent encoding or storing, in seconds.
        loads: times a payload came back through the stage.
        seconds_back: time spent decoding or loading, in seconds.
    """

    tensors: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    seconds_in: float = 0.0
    loads: int = 0
    seconds_back: float = 0.0

    def __sub__(self, earlier: "StageStats") -> "StageStats":
        both = zip(astuple(self), astuple(earlier), strict=True)
        return StageStats(*(after - before for after, before in both))


@dataclass(frozen=True, slots=True)
class Stats:
    """What a session has done so far; a snapshot. Later minus earlier is what was done in between.

    Args:
        seen: every tensor autograd saved inside the scope.
        kept: tensors left as they are, by reason.
        deduplicated: tensors whose content was stashed already; they share its payload.
        stashed: tensors whose content went through the plan.
        declined: those of them that are kept after all, since their content does not shrink, or backward reads it
            exactly.
        held: contents that wait where they are, now, since somebody besides the graph holds their memory.
        stages: codecs and stores by name, in the order they were first used.
        stored: payloads put, by tier, as bytes after encoding.
        live: payloads that exist now, as bytes after encoding.
        peak_bytes: largest ``live.nbytes`` so far.
        peak_bytes_by_tier: the same for each tier.
        unpacked: times a stashed tensor was asked for.
        forwarded: times the source itself was the answer, since its bytes were not captured yet.
        pinned_bytes: host memory that is page-locked now for copies from and to devices, in use or not.
        waits: devices whose copies make the program wait, and what they lack.
        plan: what a budget has become, in a few lines; empty without one.
        peak_held: most bytes that saved tensors and the engine held at one time, under a budget.
        advice: what has no effect and what to do, a line each; also what to do so that freed memory leaves the process.
    """

    seen: Tally = Tally()
    kept: Mapping[str, Tally] = field(default_factory=dict)
    deduplicated: Tally = Tally()
    stashed: Tally = Tally()
    declined: Tally = Tally()
    held: Tally = Tally()
    stages: Mapping[str, StageStats] = field(default_factory=dict)
    stored: Mapping[str, Tally] = field(default_factory=dict)
    live: Tally = Tally()
    peak_bytes: int = 0
    peak_bytes_by_tier: Mapping[str, int] = field(default_factory=dict)
    unpacked: int = 0
    forwarded: int = 0
    pinned_bytes: int = 0
    waits: Mapping[str, str] = field(default_factory=dict)
    plan: str = ""
    peak_held: int = 0
    advice: str = ""

    def __sub__(self, earlier: "Stats") -> "Stats":
        """Return what was done since an earlier snapshot; what exists now, peaks and advice stay those of this one."""
        return replace(
            self,
            seen=self.seen - earlier.seen,
            kept=_since(self.kept, earlier.kept, Tally()),
            deduplicated=self.deduplicated - earlier.deduplicated,
            stashed=self.stashed - earlier.stashed,
            declined=self.declined - earlier.declined,
            stages=_since(self.stages, earlier.stages, StageStats()),
            stored=_since(self.stored, earlier.stored, Tally()),
            unpacked=self.unpacked - earlier.unpacked,
            forwarded=self.forwarded - earlier.forwarded,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        values = (getattr(self, each.name) for each in fields(self))
        return Stats, tuple(dict(value) if isinstance(value, Mapping) else value for value in values)

    def scalars(self, prefix: str = "tensorstash/") -> dict[str, float]:
        """Return every number under a flat name, as TensorBoard, W&B and trainers log them.

        Args:
            prefix: in front of each name.

        >>> Stats(seen=Tally(2, 64)).scalars("stash/")["stash/seen/nbytes"]
        64.0
        """
        return dict(_flat(self.to_dict(), prefix))

    def to_dict(self) -> dict[str, Any]:
        """Return plain dictionaries, numbers and strings, ready for JSON."""
        return {
            "seen": asdict(self.seen),
            "kept": {reason: asdict(tally) for reason, tally in self.kept.items()},
            "deduplicated": asdict(self.deduplicated),
            "stashed": asdict(self.stashed),
            "declined": asdict(self.declined),
            "held": asdict(self.held),
            "stages": {name: asdict(stage) for name, stage in self.stages.items()},
            "stored": {tier: asdict(tally) for tier, tally in self.stored.items()},
            "live": asdict(self.live),
            "peak_bytes": self.peak_bytes,
            "peak_bytes_by_tier": dict(self.peak_bytes_by_tier),
            "unpacked": self.unpacked,
            "forwarded": self.forwarded,
            "pinned_bytes": self.pinned_bytes,
            "waits": dict(self.waits),
            "plan": self.plan,
            "peak_held": self.peak_held,
            "advice": self.advice,
        }

    def __str__(self) -> str:
        rows = [("saved tensors", self.seen), ("stashed", self.stashed), ("deduplicated", self.deduplicated)]
        rows += [("kept: no gain, or read exactly", self.declined)] if self.declined.tensors else []
        rows += [(f"kept: {reason}", tally) for reason, tally in self.kept.items()]
        rows += [("held by others now", self.held)] if self.held.tensors else []
        rows += [(f"in {tier}", tally) for tier, tally in self.stored.items()]
        rows += [("live now", self.live)]
        width = max(len(label) for label, _ in rows)
        lines = [f"{'':{width}}  {'tensors':>8}  {'bytes':>9}"]
        lines += [f"{label:{width}}  {tally.tensors:>8}  {format_bytes(tally.nbytes):>9}" for label, tally in rows]
        by_tier = ", ".join(f"{tier} {format_bytes(peak)}" for tier, peak in self.peak_bytes_by_tier.items())
        lines.append(f"peak payload {format_bytes(self.peak_bytes)}" + (f" ({by_tier})" if by_tier else ""))
        lines.append(f"unpacked {self.unpacked} times, {self.forwarded} of them before the bytes had left")
        if self.pinned_bytes:
            lines.append(f"page-locked host memory {format_bytes(self.pinned_bytes)}")
        lines += [f"the program waits for copies of {device}: {why}" for device, why in self.waits.items()]
        if self.stages:
            width = max(len(name) for name in self.stages)
            lines.append(f"{'stage':{max(width, 5)}}  {'in':>9}  {'out':>9}  {'ratio':>6}  {'in s':>7}  {'back s':>7}")
            lines += [
                f"{name:{max(width, 5)}}  {format_bytes(s.bytes_in):>9}  {format_bytes(s.bytes_out):>9}  "
                f"{s.bytes_in / max(s.bytes_out, 1):>6.2f}  {s.seconds_in:>7.3f}  {s.seconds_back:>7.3f}"
                for name, s in self.stages.items()
            ]
        if self.plan:
            lines += [f"held at most {format_bytes(self.peak_held)}", *self.plan.splitlines()]
        if self.advice:
            lines.append(self.advice)
        return "\n".join(lines)


S = TypeVar("S", Tally, StageStats)


def _since(now: Mapping[str, S], earlier: Mapping[str, S], none: S) -> Mapping[str, S]:
    changes = {name: value - earlier.get(name, none) for name, value in now.items()}
    return MappingProxyType({name: value for name, value in changes.items() if value != none})


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        elif not isinstance(value, str):
            yield prefix + name, float(value)


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
        self._stages: dict[str, StageStats] = {}
        self._stored: dict[str, Tally] = {}
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

    def stashed(self, nbytes: int) -> None:
        """Count a tensor whose content goes through the plan."""
        with self._lock:
            self._stashed = self._stashed.plus(nbytes)

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

    def stored(self, tier: str, payload_bytes: int) -> Counted:
        """Count a payload that was put into ``tier``, and exists as long as what is returned."""
        counted = Counted()
        entry = _Entry(counted, self._gone.append)
        entry.tier, entry.nbytes = tier, payload_bytes
        with self._lock:
            self._settle()
            self._entries.add(entry)
            self._stored[tier] = self._stored.get(tier, Tally()).plus(payload_bytes)
            live = self._live[tier] = self._live.get(tier, Tally()).plus(payload_bytes)
            self._peaks[tier] = max(self._peaks.get(tier, 0), live.nbytes)
            self._peak = max(self._peak, sum(tally.nbytes for tally in self._live.values()))
        return counted

    def stage_in(self, name: str, bytes_in: int, bytes_out: int, seconds: float) -> None:
        """Count one run of a stage on the way in."""
        with self._lock:
            s = self._stages.get(name, StageStats())
            self._stages[name] = StageStats(
                s.tensors + 1,
                s.bytes_in + bytes_in,
                s.bytes_out + bytes_out,
                s.seconds_in + seconds,
                s.loads,
                s.seconds_back,
            )

    def stage_back(self, name: str, seconds: float) -> None:
        """Count one run of a stage on the way back."""
        with self._lock:
            s = self._stages.get(name, StageStats())
            self._stages[name] = StageStats(
                s.tensors, s.bytes_in, s.bytes_out, s.seconds_in, s.loads + 1, s.seconds_back + seconds
            )

    def snapshot(self) -> Stats:
        """Return the counters as they stand."""
        with self._lock:
            self._count_anew()
            kept = {reason: tally for reason in list(self.kept) if (tally := self._tally(reason)).tensors}
            unpacked = next(self._unpackings) - self._snapshots
            self._snapshots += 1
            parts = [*kept.values(), self._deduplicated, self._stashed]
            return Stats(
                seen=Tally(sum(t.tensors for t in parts), sum(t.nbytes for t in parts)),
                kept=MappingProxyType(kept),
                deduplicated=self._deduplicated,
                stashed=self._stashed,
                declined=self._declined,
                stages=MappingProxyType(dict(self._stages)),
                stored=MappingProxyType(dict(self._stored)),
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
