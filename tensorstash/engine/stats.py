"""The statistics of a session: a frozen value for the user."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from operator import sub
from typing import Any

from tensorstash.sizes import format_bytes


@dataclass(frozen=True, slots=True)
class Tally:
    """A number of tensors and the bytes of their elements."""

    tensors: int = 0
    nbytes: int = 0

    def __sub__(self, earlier: "Tally") -> "Tally":
        return Tally(self.tensors - earlier.tensors, self.nbytes - earlier.nbytes)


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
        return StageStats(*map(sub, astuple(self), astuple(earlier)))


_AS_NOW = {"held", "live", "peak_bytes", "peak_bytes_by_tier", "pinned_bytes", "process_peak", "peak_held"}
_AS_NOW |= {"waits", "planned", "blocks", "advice"}
"""Names of statistics that do not add up: of present payloads, of peaks, and of plans."""


@dataclass(frozen=True, slots=True)
class Stats:
    """The statistics of a session so far; a snapshot. Later minus earlier are those of the steps in between.

    Args:
        seen: every tensor autograd saved inside the scope.
        kept: tensors left as they are, by reason.
        deduplicated: tensors whose content was stashed already; they share its payload.
        stashed: tensors whose content went through the plan.
        declined: those of them that are kept after all, since their content does not shrink, or backward reads it
            exactly.
        recomputed: tensors that are not stored but made again when they are needed, by rule: ``bytes_in`` is theirs,
            ``seconds_in`` the time to find and prove recipes, ``loads`` how often one was made again.
        refused: tensors that could have been made again, by rule and reason, and are not.
        without_recipe: tensors that were wanted made again and have no recipe, by reason.
        held: contents that wait where they are, now, since somebody besides the graph holds their memory.
        stages: codecs and stores by name, in the order in which the session met them.
        stored: payloads put, by tier, as bytes after encoding.
        saved_bytes: by how much the memory that the tensors were in got emptier, added up over all stashed so far.
        modules: stashed tensors by the module they belong to, where the policy selects by module name.
        live: payloads that exist now, as bytes after encoding.
        peak_bytes: largest ``live.nbytes`` so far.
        peak_bytes_by_tier: the same for each tier.
        unpacked: times a stashed tensor was asked for.
        forwarded: times the source itself was the answer, since its bytes were not captured yet.
        pinned_bytes: host memory that is page-locked now for copies from and to devices, in use or not.
        waits: devices whose copies make the program wait, and the missing ability.
        planned: tensors that a budget keeps, recomputes and stores in a step like the last, by these words.
        blocks: names of the blocks of a model under ``checkpoint``, by their treatment.
        steps: the number of steps; 0 while nothing was to leave.
        process_peak: largest resident size of the process so far, in bytes; 0 where the system does not say.
        peak_held: most bytes that saved tensors and the engine held at one time, under a budget.
        advice: causes without effect and their cures, a line each.
    """

    seen: Tally = Tally()
    kept: Mapping[str, Tally] = field(default_factory=dict)
    deduplicated: Tally = Tally()
    stashed: Tally = Tally()
    declined: Tally = Tally()
    recomputed: Mapping[str, StageStats] = field(default_factory=dict)
    refused: Mapping[str, Tally] = field(default_factory=dict)
    without_recipe: Mapping[str, Tally] = field(default_factory=dict)
    held: Tally = Tally()
    stages: Mapping[str, StageStats] = field(default_factory=dict)
    stored: Mapping[str, Tally] = field(default_factory=dict)
    saved_bytes: int = 0
    modules: Mapping[str, Tally] = field(default_factory=dict)
    live: Tally = Tally()
    peak_bytes: int = 0
    peak_bytes_by_tier: Mapping[str, int] = field(default_factory=dict)
    unpacked: int = 0
    forwarded: int = 0
    pinned_bytes: int = 0
    waits: Mapping[str, str] = field(default_factory=dict)
    planned: Mapping[str, Tally] = field(default_factory=dict)
    blocks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    steps: int = 0
    process_peak: int = field(default=0, compare=False)
    peak_held: int = 0
    advice: str = ""

    def __sub__(self, earlier: "Stats") -> "Stats":
        """Return the statistics since an earlier snapshot; present payloads, peaks and advice are those of this one."""
        added = {each.name for each in fields(self)}.difference(_AS_NOW)
        return replace(self, **{name: _since(getattr(self, name), getattr(earlier, name)) for name in added})

    def scalars(self, prefix: str = "tensorstash/") -> dict[str, float]:
        """Return every number under a flat name behind a prefix, as TensorBoard, W&B and trainers log them.

        >>> Stats(seen=Tally(2, 64)).scalars("stash/")["stash/seen/nbytes"]
        64.0
        """
        return dict(_flat(self.to_dict(), prefix))

    def to_dict(self) -> dict[str, Any]:
        """Return plain dictionaries, numbers and strings, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        """Return text for people to read."""
        stages = _aligned(self._by_stage()) if self.stages else ()
        text = [*self._sentences(), *_aligned(self._counted()), *stages, self.advice]
        return "\n".join(filter(None, text))

    def _period(self) -> str:
        return f"over {self.steps} step{'s' * (self.steps > 1)}" if self.steps else ""

    def _counted(self) -> list[tuple[str, ...]]:
        rows = [("saved tensors", self.seen), ("stashed", self.stashed), ("deduplicated", self.deduplicated)]
        rows += [(f"recomputed: {rule}", Tally(done.tensors, done.bytes_in)) for rule, done in self.recomputed.items()]
        rows += [("kept: no gain, or read exactly", self.declined)] if self.declined.tensors else []
        rows += [(f"kept: {reason}", tally) for reason, tally in self.kept.items()]
        rows += [("held by others now", self.held)] if self.held.tensors else []
        rows += [(f"in {tier}", tally) for tier, tally in self.stored.items()]
        rows += [(f"stashed in {name}", tally) for name, tally in self.modules.items()]
        rows += [("live now", self.live)]
        return [
            (self._period(), "tensors", "bytes"),
            *((label, str(t.tensors), format_bytes(t.nbytes)) for label, t in rows),
        ]

    def _by_stage(self) -> list[tuple[str, ...]]:
        rows = [
            (
                name,
                format_bytes(s.bytes_in),
                format_bytes(s.bytes_out),
                f"{s.bytes_in / max(s.bytes_out, 1):.2f}",
                f"{s.seconds_in:.3f}",
                f"{s.seconds_back:.3f}",
            )
            for name, s in self.stages.items()
        ]
        return [(f"stage {self._period()}".strip(), "in", "out", "ratio", "in s", "back s"), *rows]

    def _sentences(self) -> Iterator[str]:
        if self.steps:
            again = sum(done.bytes_in for done in self.recomputed.values())
            left, all_of_them = self.saved_bytes + again, self.stashed.nbytes + again
            peak = f"; process peak {format_bytes(self.process_peak)}" if self.process_peak else ""
            each, could = format_bytes(left // self.steps), format_bytes(all_of_them // self.steps)
            yield f"per step: {each} left memory of {could} that could{peak}"
            yield f"{self._period()}: {format_bytes(left)} of {format_bytes(all_of_them)}"
        by_tier = ", ".join(f"{tier} {format_bytes(peak)}" for tier, peak in self.peak_bytes_by_tier.items())
        yield f"peak payload {format_bytes(self.peak_bytes)}" + (f" ({by_tier})" if by_tier else "")
        yield f"unpacked {self.unpacked} times, {self.forwarded} of them before the bytes had left"
        if self.pinned_bytes:
            yield f"page-locked host memory {format_bytes(self.pinned_bytes)}"
        yield from (f"the program waits for copies of {device}: {why}" for device, why in self.waits.items())
        if self.blocks:
            yield f"blocks: {', '.join(f'{len(names)} {treatment}' for treatment, names in self.blocks.items())}"
        if self.planned:
            parts = (f"{fate} {tally.tensors} of {format_bytes(tally.nbytes)}" for fate, tally in self.planned.items())
            yield f"under the budget each step has {', '.join(parts)}; held at most {format_bytes(self.peak_held)}"


def _aligned(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for label, *cells in rows:
        padded = (f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        yield "  ".join((f"{label:{widths[0]}}", *padded))


def _since(now: Any, earlier: Any) -> Any:
    """Return the increase of a number or a tally, or to each of a mapping's as far as anything was."""
    if not isinstance(now, Mapping):
        return now - earlier
    changes = {name: value - earlier[name] if name in earlier else value for name, value in now.items()}
    return {name: change for name, change in changes.items() if any(astuple(change))}


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        elif not isinstance(value, str):
            yield prefix + name, float(len(value) if isinstance(value, tuple) else value)
