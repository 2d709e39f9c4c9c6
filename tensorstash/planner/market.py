"""A search over prices: of a byte at the point where memory is shortest, and of a second of each link.

At given prices each record chooses for itself. Links are for those that need not wait for them too long: in forward
their bytes wait in memory, which has the less room for that the more is kept. Whatever the best plan is, nearly all of
its records have chosen so: at most as many have not as there are constraints that bind.
"""

from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorstash.planner.model import Floats, Ints, Table
from tensorstash.planner.pressure import MOVING, pressure


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

_LARGE, _LOOKS = 256, 2
"""With more records than that, no more than so many choices are looked at on each of the terms: one decision matters
less among many, and those that follow are hardly ever better."""

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
        # Records come last: the shortest loop of an array is the slowest to be inside.
        self._frees_as_well = self._left.T[:, None, :] <= self._left.T[None, :, :]
        freed = table.freed[rows]
        self._span = float(np.ptp(freed)) if len(rows) else 0.0
        self._progress = (freed - freed.min(initial=np.inf)) / (self._span or 1.0)
        self._moves = table.out_s[rows] + table.back_s[rows]
        # Worked out once, as lists, which a loop of Python goes through on all terms.
        self._carried = at = row, place = np.nonzero(self._linked)
        what = table.link[rows][at], table.out_s[rows][at], table.back_s[rows][at], freed[row], table.wanted[rows][row]
        self._queued = list(zip(row.tolist(), place.tolist(), *(each.tolist() for each in what), strict=True))

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
        looks = _LOOKS if self._table.count > _LARGE else stairs.count + 1
        while looks and low <= at <= high and stairs.seconds(low) < self.price:
            looks -= 1
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
        elsewhere = np.where(self._linked, np.inf, offers).T[:, None, :]
        wanted = self._linked & (offers < np.where(self._frees_as_well, elsewhere, np.inf).min(axis=0).T)
        row, _ = self._carried
        queue = np.flatnonzero(wanted[self._carried])
        queue = queue[np.lexsort((offers[self._carried][queue], row[queue]))]
        may_wait = (terms.first + (terms.last - terms.first) * self._progress[row[queue]]) * self._span
        sent, fetched = [-np.inf] * len(self._table.links), [np.inf] * len(self._table.links)
        admitted = np.zeros(offers.shape, bool)
        last = -1
        for number, most in zip(queue.tolist(), may_wait.tolist(), strict=True):
            one, option, link, out, back, freed, asked = self._queued[number]
            queued, due = sent[link], fetched[link]
            leaves, returns = (freed if freed > queued else queued) + out, (asked if asked < due else due) - back
            if one != last and leaves - freed <= most and asked - returns <= most:
                sent[link], fetched[link] = leaves, returns
                admitted[one, option] = True
                last = one
        return admitted

    def _tried(self, stairs: "_Stairs", step: int) -> tuple[float, float]:
        """Return the cost of the choices at a step, and the bytes that do not fit unless the program waits."""
        choice = np.zeros(self._table.count, np.int64)
        choice[self._rows] = stairs.at(step)
        found = pressure(self._table, choice, self._room, self.price)
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
