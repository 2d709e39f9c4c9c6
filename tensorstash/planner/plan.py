"""A plan as a value: what becomes of each class of saved tensors, why, and what it costs."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from tensorstash.config import to_dict
from tensorstash.errors import ConfigError
from tensorstash.planner.bound import lower_bound
from tensorstash.planner.model import KEEP, Ints, Problem, Record, SavedClass
from tensorstash.planner.plot import plot
from tensorstash.planner.solve import Solution, Status, price_of_memory
from tensorstash.planner.trace import Curves, Span, chrome_trace, curves, spans
from tensorstash.policies.plan import HookPolicy
from tensorstash.policies.route import Route, Rule
from tensorstash.policies.selectors import Saved
from tensorstash.sizes import format_bytes

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Row:
    """One class of saved tensors.

    Args:
        key: the class.
        nbytes: bytes of one step.
        tier: what becomes of them.
        why: in words.
        seconds: what that adds to the step by itself.
        link_s: seconds for which a link is occupied.
    """

    key: SavedClass
    nbytes: int
    tier: str
    why: str
    seconds: float = 0.0
    link_s: float = 0.0


@dataclass(frozen=True)
class BudgetPlan:
    """What a budget has become. Prints as a table.

    Args:
        budget: bytes that are held.
        status: ``"declined"`` if everything fits, ``"impossible"`` if nothing makes it fit, else ``"planned"``.
        rows: one for each class, in the order in which they are saved.
        peak: predicted bytes at the worst point.
        least: the smallest budget that can be held.
        native: bytes at the worst point if everything is kept.
        background: bytes among them that no decision changes.
        seconds: predicted to be added to the step.
        stall_s: those of them for which the program waits for links.
        step_s: seconds of the step without hooks.
        problem: what was planned.
        solution: what was found; None for a plan that nothing is known of besides its rows.
        ranks: of the processes that share the plan; empty for one that plans alone.
    """

    budget: int
    status: Status
    rows: tuple[Row, ...]
    peak: int
    least: int
    native: int
    background: int = 0
    seconds: float = 0.0
    stall_s: float = 0.0
    step_s: float = 0.0
    problem: Problem = field(default=Problem((), 0), repr=False, compare=False)
    solution: Solution | None = field(default=None, repr=False, compare=False)
    ranks: tuple[int, ...] = ()

    # What only who looks at a plan wants to know is found out then, and takes no time or memory of a training.

    @cached_property
    def price(self) -> float:
        """Seconds of a step that one more byte saves."""
        if self.solution is None or self.status != "planned":
            return 0.0
        return price_of_memory(self.problem, self.solution)

    @cached_property
    def bound_s(self) -> float | None:
        """Seconds that every plan adds at least; None where SciPy is not installed."""
        return lower_bound(self.problem) if self.status == "planned" else None

    @cached_property
    def held(self) -> Curves:
        """Bytes over the step."""
        return curves(self.problem, self._choice)

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """What takes time in the step."""
        return spans(self.problem, self._choice)

    @property
    def _choice(self) -> Ints:
        return np.array(() if self.solution is None else self.solution.choice, np.int64)

    @property
    def digest(self) -> str:
        """What tells this plan from others: sixteen hexadecimal digits of its budget and what becomes of each class.

        Equal on all processes that do the same, whatever they have measured.
        """
        decided = json.dumps([self.budget, sorted((*row.key, row.tier) for row in self.rows)])
        return hashlib.blake2b(decided.encode(), digest_size=8).hexdigest()

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the bytes held over one step, before and after, with the tiers coloured.

        Args:
            path: of the file; its suffix is the format.

        Raises:
            MissingDependencyError: matplotlib is not installed.
            OSError: the file cannot be written.
        """
        plot(self.held, self.budget, self.background, path)

    def to_chrome_trace(self) -> dict[str, Any]:
        """Return one step on a time line, for ``json.dump`` and Perfetto: compute, codecs, links, stalls, bytes.

        When tensors are saved and wanted was measured; what the plan does in between is predicted from it.
        """
        return chrome_trace(self.spans, self.held)

    @property
    def tiers(self) -> dict[SavedClass, str]:
        """The tier of each class."""
        return {row.key: row.tier for row in self.rows}

    def route(self, tiers: Mapping[str, HookPolicy]) -> Route:
        """Return a policy that does the same and needs no planner.

        Args:
            tiers: the policy of each tier, as of :meth:`tensorstash.Budget.tiers`.

        Raises:
            ConfigError: a tier of the plan has no policy.
        """
        for row in self.rows:
            if row.tier not in tiers:
                raise ConfigError(f"plan: no policy for the tier {row.tier!r}; known: {', '.join(tiers)}")
        return Route(tuple(Rule(when, tiers[tier]) for when, tier in self._ranges() if tier != KEEP))

    def save(self, path: str | os.PathLike[str], tiers: Mapping[str, HookPolicy]) -> None:
        """Write :meth:`route` to a TOML file, which :func:`tensorstash.load` reads and anybody may edit.

        Args:
            path: of the file.
            tiers: as for :meth:`route`.

        Raises:
            ConfigError: as for :meth:`route`.
            OSError: the file cannot be written.
        """
        self.route(tiers)
        lines = [f"# {line}" for line in self.summary.splitlines()]
        lines += ["", "[policy]", 'name = "route"', 'otherwise = "keep"']
        moved = [(when, tier) for when, tier in self._ranges() if tier != KEEP]
        lines += [] if moved else ["rules = []"]
        for when, tier in moved:
            lines += ["", "[[policy.rules]]", f"when = {_inline(_plain(when))}"]
            lines += [f"use = {_inline(to_dict(tiers[tier]))}"]
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")

    def _ranges(self) -> Iterator[tuple[Saved, str]]:
        """Yield runs of places that share a tier, each as a selector."""
        for kind, members in groupby(sorted(self.rows, key=lambda row: row.key), key=lambda row: row.key[:4]):
            for tier, run in groupby(members, key=lambda row: row.tier):
                places = [row.key.ordinal for row in run]
                module, producer, dtype, shape = kind
                yield Saved(producer, dtype, shape, places[0], places[-1], module), tier

    def to_dict(self) -> dict[str, Any]:
        """Return plain dictionaries, lists, numbers and texts, ready for JSON."""
        plain = {each.name: getattr(self, each.name) for each in fields(self) if each.compare}
        plain |= {"digest": self.digest, "held": self.held._asdict(), "spans": [span._asdict() for span in self.spans]}
        plain |= {"price": self.price, "bound_s": self.bound_s}
        plain["rows"] = [{**asdict(row), "key": row.key._asdict()} for row in self.rows]
        return plain

    @property
    def summary(self) -> str:
        """What the plan is and costs, in a line or two."""
        sizes = f"peak {format_bytes(self.peak)} of {format_bytes(self.budget)}"
        if self.ranks:
            sizes += f"; one plan of {len(self.ranks)} processes"
        if self.status == "declined":
            return f"declined: everything fits, so all is kept; {sizes}"
        lines = [f"{self.status}: {sizes}; {format_bytes(self.native)} if everything is kept"]
        if self.status == "impossible":
            lines[0] = (
                f"impossible: {format_bytes(self.budget)} cannot be held; the smallest budget that works is "
                f"{format_bytes(self.least)}, {format_bytes(self.background)} of which no decision changes"
            )
        lines.append(
            f"smallest budget {format_bytes(self.least)}; adds {1e3 * self.seconds:.3g} ms to a step of "
            f"{1e3 * self.step_s:.4g} ms, {1e3 * self.stall_s:.3g} ms of them waiting"
        )
        return "\n".join(lines)

    def __str__(self) -> str:
        lines = [f"{'class':44} {'count':>5} {'bytes':>9}  {'tier':12} {'ms':>7} {'link ms':>7}  why"]
        grouped: dict[tuple[Any, ...], list[Row]] = {}
        for row in self.rows:
            grouped.setdefault((*row.key[:4], row.tier, row.why), []).append(row)
        for (module, producer, dtype, shape, tier, why), rows in grouped.items():
            name = f"{module + ' ' if module else ''}{producer or 'input'} {dtype}{list(shape)}"
            lines.append(
                f"{name[:44]:44} {len(rows):>5} {format_bytes(sum(row.nbytes for row in rows)):>9}  {tier:12} "
                f"{1e3 * sum(row.seconds for row in rows):>7.2f} {1e3 * sum(row.link_s for row in rows):>7.2f}  {why}"
            )
        lines.append(self.summary)
        if self.price * _GIB >= 1e-6:
            lines.append(f"1 GiB more would save {1e3 * self.price * _GIB:.3g} ms a step, at this price")
        if self.bound_s is not None:
            lines.append(f"no plan adds less than {1e3 * self.bound_s:.3g} ms")
        return "\n".join(lines)


def planned(problem: Problem, solution: Solution, aliases: Mapping[SavedClass, SavedClass]) -> BudgetPlan:
    """Return a solution as a plan.

    Args:
        problem: the step.
        solution: of it.
        aliases: classes that share the memory of a record's, and so its tier.
    """
    rows = {record.key: _row(record, place) for record, place in zip(problem.records, solution.choice, strict=True)}
    shared = [
        Row(key, 0, rows[owner].tier, f"shares memory with {owner.producer or 'an input'}")
        for key, owner in aliases.items()
        if owner in rows
    ]
    return BudgetPlan(
        problem.budget,
        solution.status,
        (*rows.values(), *shared),
        solution.peak,
        solution.least,
        solution.native,
        problem.background,
        solution.seconds,
        solution.stall_s,
        problem.step_s,
        problem,
        solution,
    )


def _row(record: Record, place: int) -> Row:
    option = record.options[place]
    return Row(
        record.key, record.nbytes, option.tier, _why(record, place), option.seconds, option.out_s + option.back_s
    )


def _why(record: Record, place: int) -> str:
    option = record.options[place]
    if place == 0:
        if len(record.options) == 1:
            return "nothing makes it smaller"
        return "fits" if record.wanted > record.freed else "wanted at once"
    saves = format_bytes(record.nbytes - option.resident)
    if option.link and option.seconds == 0:
        return f"frees {saves}, hidden behind {1e3 * (record.wanted - record.freed):.3g} ms"
    return f"frees {saves} for {1e3 * option.seconds:.3g} ms"


def _plain(when: Saved) -> dict[str, Any]:
    plain: dict[str, Any] = {"name": "saved", "producer": when.producer, "dtype": when.dtype, "shape": list(when.shape)}
    plain |= {"first": when.first, "last": when.last}
    return plain | ({"module": when.module} if when.module else {})


def _inline(value: object) -> str:
    """Return TOML's inline form of plain data."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_inline(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_inline, value))}]"
    return json.dumps(value)
