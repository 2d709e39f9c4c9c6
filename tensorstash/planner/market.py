"""A search over prices: of a byte at the point where memory is shortest, and of a second of each link.

At given prices each record chooses for itself. Links are for those that need not wait for them too long: in forward
their bytes wait in memory, which has the less room for that the more is kept. Whatever the best plan is, nearly all of
its records have chosen so: at most as many have not as there are constraints that bind.
"""

from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorstash.planner.model import MOVING, Floats, Ints, Table, pressure


class Terms(NamedTuple):
    """On which terms records may use links.

    Args:
        price: seconds of the step that a second of a link costs: waiting for it costs no more than one.
        first: how long the first record may wait for its link, both ways, as a part of the forward pass.
        last: the same, for the last one; in between it changes evenly.
    """

    price: float
    first: float
    last: float


_AT_FIRST = tuple(Terms(*each) for each in product((MOVING, 0.03), (0.1, 0.6, 4.0), (0.02, 0.3, 2.0)))
"""Terms that are tried at first."""

_ROUNDS = 5
_FACTOR, _NEARER = 3.0, 0.5
"""How often terms near the best are tried, by which factor one of them changes, and how much nearer each time."""

_TILT = 0.01
"""How much more the bytes of the first record count, so that equal records change their minds one by one."""


class Market:
    """Where records choose what becomes of them.

    Args:
        table: of the records.
        room: bytes for the records.
    """

    def __init__(self, table: Table, room: float) -> None:
        self._table, self._room = table, room
        self.best: Ints | None = None
        """The cheapest choice found; None if none holds the memory."""
        self.price = np.inf
        held = pressure(table, np.zeros(table.count, np.int64), room).held
        turn = float(table.points[int(held.argmax())])
        there = (table.saved <= turn) & (turn < table.released)
        apart = there & (table.freed <= turn) & (table.wanted > turn)
        self._fixed = float(table.nbytes[there & ~apart].sum())
        rows = np.flatnonzero(apart)
        # In the order in which forward lets go; backward mostly asks in the opposite one.
        self._rows = rows = rows[np.argsort(table.freed[rows], kind="stable")]
        self._left = table.resident[rows].copy()
        self._left[:, 0] = table.nbytes[rows]
        self._weight = self._left * (1 + _TILT * np.linspace(1, 0, len(rows)))[:, None]
        self._seconds = table.seconds[rows]
        self._linked = table.link[rows] >= 0
        self._link = table.link[rows]
        self._out, self._back = table.out_s[rows], table.back_s[rows]
        self._freed, self._wanted = table.freed[rows], table.wanted[rows]
        self._span = float(np.ptp(self._freed)) if len(rows) else 0.0
        self._progress = (self._freed - self._freed.min(initial=np.inf)) / (self._span or 1.0)
        self._moves = self._out + self._back

    def search(self) -> None:
        """Look for the cheapest choice among all prices."""
        if not self._linked.any():
            self._sold(_AT_FIRST[0])
            return
        best = min((self._sold(terms), terms) for terms in _AT_FIRST)
        factor = _FACTOR
        for _ in range(_ROUNDS):
            price, first, last = best[1]
            for rate in (factor, 1 / factor):
                near = (Terms(price * rate, first, last), Terms(price, first * rate, last))
                best = min(best, *((self._sold(each), each) for each in (*near, Terms(price, first, last * rate))))
            factor **= _NEARER

    def _sold(self, terms: Terms) -> float:
        """Return the cost of the best choice on some terms."""
        stairs = _Stairs(self._offers(terms), self._weight, self._left, self._seconds)
        room = self._room - self._fixed
        low, high = stairs.enough(room), stairs.count
        best, at = np.inf, low
        while low <= at <= high and stairs.seconds(low) < self.price:
            price, excess = self._tried(stairs, at)
            best = min(best, price)
            if excess <= 0:
                low, high = low, at - 1
            else:
                low, room = at + 1, room - excess
            # What is held too much is what is missing at the turn, or else more than that.
            at = max(low, min(stairs.enough(room), (low + high) // 2))
        return best

    def _offers(self, terms: Terms) -> Floats:
        """Return the seconds of each option, those of links at their price; infinite for what is not to be had."""
        offers = self._seconds + np.where(self._linked, terms.price * self._moves, 0.0)
        return np.where(self._linked & ~self._admitted(offers, terms), np.inf, offers)

    def _admitted(self, offers: Floats, terms: Terms) -> NDArray[np.bool_]:
        """Return which options of links are to be had: of each record the best one whose queue is short enough.

        Those that something else frees as well, for less, are not in a queue.
        """
        elsewhere = np.where(self._linked, np.inf, offers)[:, None, :]
        frees_as_well = self._left[:, None, :] <= self._left[:, :, None]
        wanted = self._linked & (offers < np.where(frees_as_well, elsewhere, np.inf).min(axis=2))
        row, place = np.nonzero(wanted)
        order = np.lexsort((offers[row, place], row))
        at = row, place = row[order], place[order]
        may_wait = (terms.first + (terms.last - terms.first) * self._progress[row]) * self._span
        queued = (
            row,
            place,
            self._link[at],
            self._out[at],
            self._back[at],
            self._freed[row],
            self._wanted[row],
            may_wait,
        )
        sent, fetched = [-np.inf] * len(self._table.links), [np.inf] * len(self._table.links)
        admitted = np.zeros(offers.shape, bool)
        last = -1
        for one, option, link, out, back, freed, asked, most in zip(*(each.tolist() for each in queued), strict=True):
            leaves, returns = max(sent[link], freed) + out, min(fetched[link], asked) - back
            if one != last and leaves - freed <= most and asked - returns <= most:
                sent[link], fetched[link] = leaves, returns
                admitted[one, option] = True
                last = one
        return admitted

    def _tried(self, stairs: "_Stairs", step: int) -> tuple[float, float]:
        """Return the cost of the choices at a step, and the bytes that do not fit unless the program waits."""
        choice = np.zeros(self._table.count, np.int64)
        choice[self._rows] = stairs.at(step)
        found = pressure(self._table, choice, self._room)
        if found.price < self.price:
            self.price, self.best = found.price, choice
        return found.price, float(found.held.max() - self._room)


class _Stairs:
    """What each record chooses as the price of a byte rises, all changes in one order.

    Args:
        offers: seconds of each option of each record; infinite for none.
        weight: bytes that count of each.
        left: bytes of each.
        seconds: that each adds by itself.
    """

    def __init__(self, offers: Floats, weight: Floats, left: Floats, seconds: Floats) -> None:
        count, width = offers.shape
        rows = np.arange(count)
        chosen = [offers.argmin(axis=1)]
        prices: list[Floats] = []
        with np.errstate(invalid="ignore", divide="ignore"):
            for _ in range(width - 1):
                at = rows, chosen[-1]
                less = weight[at][:, None] - weight
                slope = np.where(less > 0, (offers - offers[at][:, None]) / less, np.inf)
                following = slope.argmin(axis=1)
                price = slope[rows, following]
                chosen.append(np.where(np.isfinite(price), following, chosen[-1]))
                prices.append(price)
        self._chosen = np.stack(chosen)
        price = np.stack(prices) if prices else np.zeros((0, count))
        order = np.argsort(price, axis=None, kind="stable")
        self.count = int(np.isfinite(price).sum())
        """Of the changes."""
        self._rank = np.empty(price.size, np.int64)
        self._rank[order] = np.arange(price.size)
        self._rank = self._rank.reshape(price.shape)
        bytes_left = left[rows, self._chosen]
        self._bytes = float(bytes_left[0].sum())
        self._gains = np.cumsum((bytes_left[:-1] - bytes_left[1:]).ravel()[order])
        took = seconds[rows, self._chosen]
        self._took = float(took[0].sum()) + np.concatenate([[0.0], np.cumsum((took[1:] - took[:-1]).ravel()[order])])
        self._rows = rows

    def enough(self, room: float) -> int:
        """Return after how many changes the records take no more than there is room for; more than there are if never.

        Args:
            room: bytes for the records.
        """
        if self._bytes <= room:
            return 0
        return int(np.searchsorted(self._gains[: self.count], self._bytes - room)) + 1

    def seconds(self, step: int) -> float:
        """Return what the choices after so many changes add by themselves."""
        return float(self._took[step])

    def at(self, step: int) -> Ints:
        """Return the choices after so many changes."""
        chosen: Ints = self._chosen[(self._rank < step).sum(axis=0), self._rows]
        return chosen
