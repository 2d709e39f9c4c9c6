"""What a plan does to memory and time: whether it can be held, and for how long the program waits."""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorstash.planner.model import Floats, Ints, Table


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


def pressure(table: Table, choice: Ints, room: float, enough: float = np.inf) -> Pressure:
    """Return what becomes of memory and time.

    A link carries one record after the other, in the order in which forward lets go of them, and back in the order in
    which backward asks. A record is in memory until it has been carried out, from when its way back begins, and what is
    left of it in between. Where that is more than there is room for, the program waits for what is on its way out, and
    what is to come back begins its way later, so that it comes late.

    Args:
        table: of the records.
        choice: an option for each record.
        room: bytes for the records.
        enough: seconds from which on a cost need not be exact: it is at least that, and no more than it is.
    """
    if not table.count:
        return Pressure(np.zeros(0), -room, 0.0, 0.0, 0.0, 0.0, np.zeros(0, bool))
    here = table.rows, choice
    link, nbytes = table.link[here], table.nbytes
    away, carried = choice > 0, link >= 0
    left = np.where(away, table.resident[here], 0.0)
    at_once = np.where(away & ~carried, nbytes, 0.0)
    held = table.so_far - table.on_released.until(left + nbytes)
    held += table.on_freed.until(left - at_once)
    held += table.on_wanted.until(at_once)
    held += table.needs.at(choice, table.points)
    held -= table.used_up(np.where(away, nbytes, 0.0))
    seconds = table.priced(choice)
    if not carried.any():
        worst = float(held.max())
        return Pressure(held, worst - room, worst, 0.0, seconds, 0.0, np.zeros(table.count, bool))

    out_s, back_s = table.out_s[here], table.back_s[here]
    out = _Way(table, link, table.on_freed.order, table.freed, out_s)
    # Backward is forward seen from its end: what is asked for last leaves its link last.
    back = _Way(table, link, table.on_wanted.order[::-1], -table.wanted, back_s)
    # What would have to come back before it has left stays, unless the program waits for it both ways.
    stays = carried & (-back.through < out.through)
    points, moved = table.points, np.where(carried, table.nbytes, 0.0)
    total = moved.sum()
    gone, begun = departed, returned = out.by(points, moved), total - back.by(-points, moved, "left")
    may_go, must_come = ready, wanted = table.on_freed.until(moved), table.on_wanted.until(moved)
    there: Floats | float = 0.0
    if stays.any():
        kept = np.where(stays, moved, 0.0)
        departed = gone - out.by(points, kept)
        returned = begun - (kept.sum() - back.by(-points, kept, "left"))
        may_go, must_come = may_go - table.on_freed.until(kept), must_come - table.on_wanted.until(kept)
        there = (ready - may_go) - (wanted - must_come)
    held += returned - departed
    under_way = np.maximum(may_go - departed, 0.0)
    early = np.maximum(returned - must_come, 0.0)
    over = np.maximum(held - room, 0.0)
    stall = 0.0
    if over.any():
        waits = np.minimum(over, under_way)
        delays = np.minimum(over - waits, early)
        both = np.minimum(over - waits - delays, there)
        over = over - waits - delays - both
        stall = out.waiting_s(points, waits + both, gone, ready, enough - seconds)
        late, ahead = (delays + both)[::-1], (total - wanted)[::-1]
        stall += back.waiting_s(-points[::-1], late, (total - begun)[::-1], ahead, enough - seconds - stall)
    least = held - under_way - early - there
    return Pressure(
        held,
        float(over.max()) or float(least.max()) - room,
        float(least.max()),
        stall,
        seconds,
        float(out_s.sum() + back_s.sum()),
        stays,
    )


class _Way:
    """One way of all links: in which order they carry records, and when each of them is through.

    Args:
        table: of the records.
        link: of each record.
        order: in which records become ready.
        ready: when each of them may be carried.
        took: seconds for which it occupies its link.
    """

    def __init__(self, table: Table, link: Ints, order: Ints, ready: Floats, took: Floats) -> None:
        self._nbytes, self._ready, self._took = table.nbytes, ready, took
        numbers = link[order]
        self._queues = [order[numbers == number] for number in range(len(table.links))]
        self.through = self._carry(ready)
        """When; what has no link is through when it is ready."""

    def _carry(self, ready: Floats) -> Floats:
        through = ready.copy()
        for rows in self._queues:
            took = self._took[rows]
            total = took.cumsum()
            through[rows] = np.maximum.accumulate(ready[rows] - (total - took)) + total
        return through

    def by(self, points: Floats, nbytes: Floats, side: Literal["left", "right"] = "right") -> Floats:
        """Return the bytes of all that is through by each point, or with the side ``"left"`` before it."""
        found = np.zeros(points.size)
        for rows in self._queues:
            total = np.zeros(rows.size + 1)
            nbytes[rows].cumsum(out=total[1:])
            found += total[self.through[rows].searchsorted(points, side)]
        return found

    def waiting_s(self, points: Floats, waits: Floats, gone: Floats, most: Floats, enough: float) -> float:
        """Return the seconds for which the program waits for what is on its way.

        Args:
            points: at which it looks, in order.
            waits: bytes that it waits for at each.
            gone: bytes that are through by then without any waiting.
            most: bytes that are ready by then.
            enough: seconds from which on they need not be exact.
        """
        if not waits.any():
            return 0.0
        waiting = np.flatnonzero(waits)
        at, least = points[waiting], np.minimum(gone + waits, most)[waiting] - 0.5
        rows = np.concatenate(self._queues)
        ready = self._ready[rows]
        late = self._late(rows, self.through, at, least)
        before = np.searchsorted(at, ready)
        shift = np.concatenate([[0.0], np.maximum.accumulate(late)])[before]
        slack = self.through[rows] - self._took[rows] - ready
        # What becomes ready after a wait does so later, and its link may have nothing to carry until then.
        moved = self._ready.copy()
        is_short = (shift > slack + 1e-12) & (before < at.size)
        while late.max() < enough and is_short.any():
            moved[rows] = ready + shift
            late = self._late(rows, self._carry(moved), at, least)
            earlier, shift = shift, np.concatenate([[0.0], np.maximum.accumulate(late)])[before]
            is_short = (shift > earlier + 1e-12) & (before < at.size)
        return float(late.max())

    def _late(self, rows: Ints, through: Floats, at: Floats, least: Floats) -> Floats:
        """Return for how long the program waits in all until so many bytes are through, at each of some points."""
        if len(self._queues) > 1:
            rows = rows[through[rows].argsort(kind="stable")]
        place = np.minimum(self._nbytes[rows].cumsum().searchsorted(least), rows.size - 1)
        late: Floats = np.maximum(through[rows[place]] - at, 0.0)
        return late
