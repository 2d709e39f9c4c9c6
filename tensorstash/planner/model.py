"""What a planner knows of one training step: what was saved when, what may become of it, and what else takes memory."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

KEEP = "keep"


class SavedClass(NamedTuple):
    """What stays the same of a saved tensor from step to step, so that a decision can be made for it.

    Args:
        module: dotted name of the module that saved it; empty where it is not known.
        producer: the operation that made it; empty where the graph did not.
        dtype: name of the element type.
        shape: sizes of the dimensions.
        ordinal: how many of the same module, producer, dtype and shape the step has saved before.
    """

    module: str
    producer: str
    dtype: str
    shape: tuple[int, ...]
    ordinal: int


@dataclass(frozen=True, slots=True)
class Option:
    """What may become of a record.

    Args:
        tier: what it is called.
        resident: bytes that it takes in the budgeted memory while the tensor itself is away.
        seconds: what it adds to the step by itself, both ways.
        link: what carries it; records of one link wait for one another. Empty for none.
        out_s: seconds for which it occupies its link on the way out.
        back_s: the same, on the way back.
    """

    tier: str
    resident: int = 0
    seconds: float = 0.0
    link: str = ""
    out_s: float = 0.0
    back_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Record:
    """One memory that a step has saved, and when; seconds of a clock that stands still while hooks run.

    Args:
        key: the class of the first tensor saved in it.
        nbytes: of the memory.
        saved: when autograd saved it.
        freed: when the forward pass no longer needed it.
        wanted: when backward first asked for it.
        released: when backward was done with it.
        options: what may become of it; the first one keeps it.
    """

    key: SavedClass
    nbytes: int
    saved: float
    freed: float
    wanted: float
    released: float
    options: tuple[Option, ...]


@dataclass(frozen=True)
class Problem:
    """A step to be planned.

    Args:
        records: in any order.
        budget: most bytes at any time, background included.
        background: bytes that no decision changes.
        step_s: seconds of the step without hooks.
    """

    records: tuple[Record, ...]
    budget: int
    background: int = 0
    step_s: float = 0.0

    @property
    def room(self) -> int:
        """Bytes that the records may take."""
        return self.budget - self.background

    @cached_property
    def table(self) -> "Table":
        """The records as arrays."""
        return Table(self.records)


class Table:
    """Records and their options as arrays, one row for each record; options that it lacks cost infinitely much.

    Args:
        records: to be tabulated.
    """

    def __init__(self, records: tuple[Record, ...]) -> None:
        self.count = len(records)
        self.width = max((len(record.options) for record in records), default=1)
        links = sorted({option.link for record in records for option in record.options if option.link})
        self.links = tuple(links)
        self.nbytes = np.array([record.nbytes for record in records], np.float64)
        self.saved = np.array([record.saved for record in records], np.float64)
        self.freed = np.array([record.freed for record in records], np.float64)
        self.wanted = np.array([record.wanted for record in records], np.float64)
        self.released = np.array([record.released for record in records], np.float64)
        shape = self.count, self.width
        self.resident: Floats = np.zeros(shape)
        self.seconds: Floats = np.full(shape, np.inf)
        self.out_s: Floats = np.zeros(shape)
        self.back_s: Floats = np.zeros(shape)
        self.link: Ints = np.full(shape, -1, np.int64)
        for row, record in enumerate(records):
            for place, option in enumerate(record.options):
                self.resident[row, place] = option.resident
                self.seconds[row, place] = option.seconds
                self.out_s[row, place] = option.out_s
                self.back_s[row, place] = option.back_s
                self.link[row, place] = links.index(option.link) if option.link else -1
        self.rows = np.arange(self.count)
        self.points = np.unique(np.concatenate([self.saved, self.wanted]))
        """When memory is looked at: just after each tensor was saved, and just after each came back."""
        self.by_freed = np.argsort(self.freed, kind="stable")
        self.by_wanted = np.argsort(self.wanted, kind="stable")

    def priced(self, choice: Ints) -> float:
        """Return the seconds that the options of a choice add by themselves."""
        return float(self.seconds[self.rows, choice].sum())


class Pressure(NamedTuple):
    """What a choice of options does to memory and time.

    Args:
        held: bytes of the records at each point, without any waiting.
        excess: bytes beyond the room that no waiting for links removes, at most; 0 or less if the plan can be held.
        least: bytes at the worst point if everything waits for the links.
        stall_s: seconds for which the program waits for links.
        seconds: that the options add by themselves.
        link_s: seconds of all links together.
        in_vain: whether a record would have to come back before it has left.
    """

    held: Floats
    excess: float
    least: float
    stall_s: float
    seconds: float
    link_s: float
    in_vain: NDArray[np.bool_]

    @property
    def cost(self) -> float:
        """Seconds that the step takes longer; infinite if the memory does not suffice."""
        return self.seconds + self.stall_s if self.excess <= 0 else float("inf")

    @property
    def price(self) -> float:
        """:attr:`cost`, and a little for each second of a link: of equal plans, the one that moves less."""
        return self.cost + MOVING * self.link_s


MOVING = 1e-3


def pressure(table: Table, choice: Ints, room: float) -> Pressure:
    """Return what becomes of memory and time.

    A link carries one record after the other, in the order in which forward lets go of them, and back in the order in
    which backward asks. A record is in memory until it has been carried out, from when its way back begins, and what is
    left of it in between. Where that is more than there is room for, the program waits for what is on its way out, and
    what is to come back begins its way later, so that it comes late.

    Args:
        table: of the records.
        choice: an option for each record.
        room: bytes for the records.
    """
    rows = table.rows
    away = choice > 0
    if not table.count:
        return Pressure(np.zeros(0), -room, 0.0, 0.0, 0.0, 0.0, np.zeros(0, bool))
    leaves = np.where(away, table.freed, np.inf)
    comes = np.where(away, table.wanted, np.inf)
    link = table.link[rows, choice]
    link_s = 0.0
    for number in range(len(table.links)):
        out = table.by_freed[link[table.by_freed] == number]
        if out.size:
            took = table.out_s[out, choice[out]]
            total = np.cumsum(took)
            leaves[out] = np.maximum.accumulate(table.freed[out] - (total - took)) + total
            back = table.by_wanted[link[table.by_wanted] == number]
            took_back = table.back_s[back, choice[back]]
            later = np.cumsum(took_back[::-1])[::-1]
            comes[back] = np.minimum.accumulate((table.wanted[back] + (later - took_back))[::-1])[::-1] - later
            link_s += float(total[-1] + later[0])
    # What would come back before it has left does so at once, unless the program waits for it both ways.
    stays = away & (comes < leaves)
    at_once = np.clip((leaves + comes) / 2, table.freed, table.wanted) if stays.any() else leaves
    sent, fetched = leaves, comes
    leaves, comes = np.where(stays, at_once, leaves), np.where(stays, at_once, comes)
    left = table.resident[rows, choice] * away

    points = table.points
    held = _until(points, table.saved, table.nbytes) - _until(points, table.released, np.where(away, left, 0.0))
    held -= _until(points, np.where(away, leaves, table.released), table.nbytes)
    held += _until(points, np.where(away, table.freed, np.inf), left)
    held += _until(points, np.where(away, comes, np.inf), table.nbytes)
    held -= _until(points, np.where(away, table.released, np.inf), table.nbytes)

    carried = away & (link >= 0)
    seconds = table.priced(choice)
    if not carried.any():
        worst = float(held.max())
        return Pressure(held, worst - room, worst, 0.0, seconds, link_s, stays)
    nbytes = table.nbytes[carried]
    out_order, out_total = _ordered(leaves[carried], nbytes)
    back_order, back_total = _ordered(comes[carried], nbytes)
    gone = _at(points, out_order, out_total)
    under_way = np.maximum(_until(points, table.freed[carried], nbytes) - gone, 0.0)
    begun = _at(points, back_order, back_total)
    early = np.maximum(begun - _until(points, table.wanted[carried], nbytes), 0.0)
    over = np.maximum(held - room, 0.0)
    waits = np.minimum(over, under_way)
    delays = np.minimum(over - waits, early)
    stall = _longest_wait(points, waits, gone, np.sort(sent[carried]), out_total)
    stall += _longest_delay(points, delays, begun, np.sort(fetched[carried]), back_total)
    least = held - under_way - early
    return Pressure(
        held,
        float((over - waits - delays).max()) or float(least.max()) - room,
        float(least.max()),
        stall,
        seconds,
        link_s,
        stays,
    )


def _ordered(times: Floats, nbytes: Floats) -> tuple[Floats, Floats]:
    order = np.argsort(times, kind="stable")
    return times[order], np.concatenate([[0.0], np.cumsum(nbytes[order])])


def _at(points: Floats, times: Floats, total: Floats) -> Floats:
    result: Floats = total[np.searchsorted(times, points, side="right")]
    return result


def _until(points: Floats, times: Floats, nbytes: Floats) -> Floats:
    """Return the bytes of all that has happened by each point."""
    return _at(points, *_ordered(times, nbytes))


def _longest_wait(points: Floats, waits: Floats, gone: Floats, times: Floats, total: Floats) -> float:
    wanted = waits > 0
    if not wanted.any():
        return 0.0
    place = np.searchsorted(total[1:], gone[wanted] + waits[wanted] - 0.5)
    return float(np.maximum(times[np.minimum(place, times.size - 1)] - points[wanted], 0.0).max())


def _longest_delay(points: Floats, delays: Floats, begun: Floats, times: Floats, total: Floats) -> float:
    wanted = delays > 0
    if not wanted.any():
        return 0.0
    place = np.searchsorted(total, begun[wanted] - delays[wanted] + 0.5, side="right") - 1
    return float(np.maximum(points[wanted] - times[np.clip(place, 0, times.size - 1)], 0.0).max())
