"""A plan over the time of one step: memory as curves, and what happens as a trace for Perfetto."""

from typing import Any, NamedTuple

import numpy as np

from tensorstash.planner.model import Ints, Option, Problem
from tensorstash.planner.pressure import pressure

_MICRO = 1e6
_TRACKS = ("compute", "codecs", "links out", "links back", "disk out", "disk back", "stalls")


class Curves(NamedTuple):
    """Bytes over one step.

    Args:
        seconds: points in time, from when the first tensor is saved.
        keep: bytes at each if everything is kept.
        plan: bytes at each under the plan.
        tiers: bytes at each of what has a tier and is in memory; with the background, and what a link has yet to carry,
            they add up to ``plan``.
    """

    seconds: tuple[float, ...]
    keep: tuple[float, ...]
    plan: tuple[float, ...]
    tiers: dict[str, tuple[float, ...]]


class Span(NamedTuple):
    """Something that takes time in a step.

    Args:
        track: one of compute, codecs, links out, links back, disk out, disk back and stalls.
        name: of what it is done to, with its tier.
        start: seconds from when the first tensor is saved.
        seconds: that it takes.
        nbytes: of it.
    """

    track: str
    name: str
    start: float
    seconds: float
    nbytes: int


def curves(problem: Problem, choice: Ints) -> Curves:
    """Return the bytes held over a step, kept and under a choice.

    Args:
        problem: the step.
        choice: an option for each record.
    """
    table = problem.table
    if not table.count:
        return Curves((), (), (), {})
    began = float(table.saved.min())
    keep = pressure(table, choice * 0, problem.room).held + problem.background
    plan = pressure(table, choice, problem.room).held + problem.background
    names = [record.options[place].tier for record, place in zip(problem.records, choice, strict=True)]
    tiers = {}
    for tier in dict.fromkeys(names):
        mine = np.array([name == tier for name in names])
        nbytes, left = np.where(mine, table.nbytes, 0.0), np.where(mine, table.resident[table.rows, choice], 0.0)
        away = np.where(choice > 0, nbytes - left, 0.0)
        held = table.on_saved.until(nbytes) - table.on_released.until(nbytes)
        held += table.on_wanted.until(away) - table.on_freed.until(away) - table.used_up(away)
        tiers[tier] = tuple(held.tolist())
    points = table.points - began
    return Curves(tuple(points.tolist()), tuple(keep.tolist()), tuple(plan.tolist()), tiers)


def spans(problem: Problem, choice: Ints) -> tuple[Span, ...]:
    """Return what takes time in a step under a choice, as it is predicted from what was measured.

    Args:
        problem: the step.
        choice: an option for each record.
    """
    table = problem.table
    if not table.count:
        return ()
    began = float(table.saved.min())
    found = []
    ends: dict[str, float] = {}
    for row in np.argsort(table.freed, kind="stable").tolist():
        record, option = problem.records[row], problem.records[row].options[choice[row]]
        name = f"{option.tier}: {record.key.module} {record.key.producer or 'input'}".replace("  ", " ")
        if option.link and option.out_s:
            start = max(record.freed, ends.get(option.link, record.freed))
            ends[option.link] = start + option.out_s
            found.append(Span(_track(option, "out"), name, start - began, option.out_s, record.nbytes))
        if choice[row] and option.seconds:
            found.append(Span("codecs", name, record.freed - began, option.seconds / 2, record.nbytes))
            found.append(Span("codecs", name, record.wanted - began, option.seconds / 2, record.nbytes))
    begins: dict[str, float] = {}
    for row in np.argsort(-table.wanted, kind="stable").tolist():
        record, option = problem.records[row], problem.records[row].options[choice[row]]
        if option.link and option.back_s:
            end = min(record.wanted, begins.get(option.link, record.wanted))
            begins[option.link] = end - option.back_s
            name = f"{option.tier}: {record.key.module} {record.key.producer or 'input'}".replace("  ", " ")
            found.append(Span(_track(option, "back"), name, end - option.back_s - began, option.back_s, record.nbytes))
    turn = float(table.points[int(pressure(table, choice * 0, problem.room).held.argmax())]) - began
    whole = max(problem.step_s, float(table.released.max()) - began)
    found.append(Span("compute", "forward", 0.0, turn, 0))
    found.append(Span("compute", "backward", turn, whole - turn, 0))
    stall = pressure(table, choice, problem.room).stall_s
    if stall:
        found.append(Span("stalls", "waiting for links", turn, stall, 0))
    return tuple(sorted(found, key=lambda span: span.start))


def _track(option: Option, way: str) -> str:
    return f"disk {way}" if option.link == "disk" else f"links {way}"


def chrome_trace(taken: tuple[Span, ...], held: Curves) -> dict[str, Any]:
    """Return the events of a step in the format that Perfetto and chrome://tracing read.

    Args:
        taken: what takes time.
        held: bytes over the step.
    """
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": track}}
        for number, track in enumerate(_TRACKS)
    ]
    for span in taken:
        event = {"ph": "X", "pid": 1, "tid": _TRACKS.index(span.track), "name": span.name}
        times = {"ts": span.start * _MICRO, "dur": span.seconds * _MICRO}
        events.append({**event, **times, "args": {"bytes": span.nbytes}})
    for seconds, keep, plan in zip(held.seconds, held.keep, held.plan, strict=True):
        counts = {"kept": keep, "planned": plan}
        events.append({"ph": "C", "pid": 1, "name": "bytes held", "ts": seconds * _MICRO, "args": counts})
    return {"traceEvents": events, "displayTimeUnit": "ms"}
