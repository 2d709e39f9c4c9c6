"""A search over prices: of a byte at the point where memory is shortest, and of a second of each link.

At given prices each record chooses for itself; links are for what forward lets go of first, since that has the longest
way to hide. Whatever the best plan is, nearly all of its records have chosen so: at most as many have not as there are
constraints that bind.
"""

from itertools import product

import numpy as np

from tensorstash.planner.model import MOVING, Floats, Ints, Table, pressure

_PARTS = 5
"""How many places in the forward pass are tried at first, up to which links are used."""

_LINK_PRICES = (MOVING, 0.004, 0.015, 0.06, 0.25)
"""What a second of a link may cost at first: never more than the second of the step that waiting for it costs."""

_TILT = 0.01
"""How much more the bytes of the first record count, so that equal records change their minds one by one."""

_RISE = 0.6
"""By how much the price of links rises from the first record to the last: the later, the more has to wait for them."""

_ROUNDS = 9
_NEARER = 0.6
"""How often prices near the best are tried, and how much nearer each time."""


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
        self._rise = np.linspace(1 - _RISE, 1 + _RISE, len(rows))[:, None]
        self._moves = table.out_s[rows] + table.back_s[rows]

    def search(self) -> None:
        """Look for the cheapest choice among all prices."""
        count = len(self._rows)
        if not self._linked.any():
            self._sold(0, MOVING)
            return
        parts = np.unique(np.linspace(0, count, _PARTS).astype(int)).tolist()[::-1]
        best = min((self._sold(part, price), part, price) for price, part in product(_LINK_PRICES, parts))
        step, factor = count / (_PARTS - 1) / 2, 1.8
        for _ in range(_ROUNDS):
            _, part, price = best
            move = max(round(step), 1)
            around = [(part - move, price), (part + move, price), (part, price * factor), (part, price / factor)]
            near = [(self._sold(at, rate), at, rate) for at, rate in around if 0 <= at <= count]
            best = min(best, *near)
            step, factor = step * _NEARER, factor**_NEARER

    def _sold(self, part: int, link_price: float) -> float:
        """Return the cost of the best choice where the first records may use links, at a price."""
        stairs = _Stairs(self._offers(part, link_price), self._weight, self._left, self._seconds)
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

    def _offers(self, part: int, link_price: float) -> Floats:
        """Return the seconds of each option, those of links at their price; infinite for what is not to be had."""
        moves = np.where(self._linked, link_price * self._rise * self._moves, 0.0)
        moves[part:] = np.where(self._linked[part:], np.inf, 0.0)
        return self._seconds + moves

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
