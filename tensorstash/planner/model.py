"""What a planner knows of one training step: what was saved when, what may become of it, and what else takes memory."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

KEEP = "keep"

STORES = DISK, COPIES = "disk", "copies"
"""Links to stores. Seconds of another link, the cores, are seconds of the processor, which are known."""


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

    @property
    def kind(self) -> tuple[str, str, str, tuple[int, ...]]:
        """All but the ordinal."""
        return self[:4]


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
        needs: classes of the records that it is made of when it comes back, and that come back for that, too.
    """

    tier: str
    resident: int = 0
    seconds: float = 0.0
    link: str = ""
    out_s: float = 0.0
    back_s: float = 0.0
    needs: tuple[SavedClass, ...] = ()


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
        used: when backward was first done with what had come back, if the graph is retained for another; or None.
    """

    key: SavedClass
    nbytes: int
    saved: float
    freed: float
    wanted: float
    released: float
    options: tuple[Option, ...]
    used: float | None = None


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


class Moments:
    """When something happens to each record.

    Args:
        times: of each record.
        points: at which one asks what has happened.
    """

    def __init__(self, times: Floats, points: Floats) -> None:
        self.order = np.argsort(times, kind="stable")
        self._places = np.searchsorted(times[self.order], points, side="right")

    def until(self, nbytes: Floats) -> Floats:
        """Return the bytes of all records to which it has happened by each point."""
        total = np.zeros(len(self.order) + 1)
        nbytes[self.order].cumsum(out=total[1:])
        found: Floats = total[self._places]
        return found


class Needs:
    """What records are made of when they come back, and how many bytes that takes for as long as it lasts.

    Args:
        records: of the table.
        table: of the records.
    """

    def __init__(self, records: tuple[Record, ...], table: "Table") -> None:
        rows = {record.key: row for row, record in enumerate(records)}
        edges = [
            (row, place, rows[key])
            for row, record in enumerate(records)
            for place, option in enumerate(record.options)
            for key in option.needs
            if key in rows and records[rows[key]].saved < record.saved
        ]
        self._made, self._place, self._of = np.array(edges, np.int64).reshape(-1, 3).T
        # What has come back for its own sake is counted already.
        wanted = table.wanted[self._made]
        is_back = (table.wanted[self._of] <= wanted) & (wanted < table.used[self._of])
        self._nbytes = np.where(is_back, 0.0, table.nbytes[self._of])
        self._own = table.nbytes[self._made]
        self._count = table.count
        self._points = np.searchsorted(table.points, table.wanted)

    def at(self, choice: Ints, points: Floats) -> Floats | float:
        """Return the bytes at each point; 0 if there are none at any.

        Args:
            choice: an option for each record.
            points: of the table.
        """
        taken = self._nbytes * ((choice[self._made] == self._place) & (choice[self._of] > 0))
        if not taken.any():
            return 0.0
        least = np.bincount(self._made, taken, self._count)
        takes = least
        while True:
            # What is needed for something that is needed is let go of before the tensor itself is there.
            before = np.where(taken > 0, least[self._made] + takes[self._of] - self._own, 0.0)
            more = takes.copy()
            np.maximum.at(more, self._made, before)
            if (more <= takes).all():
                break
            takes = more
        found: Floats = np.zeros(points.size)
        np.maximum.at(found, self._points, takes)
        return found


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
        self.is_made: NDArray[np.bool_] = np.zeros(shape, bool)
        """Whether other records come back for it."""
        places = {link: number for number, link in enumerate(links)} | {"": -1}
        cells = [
            (row, place, one.resident, one.seconds, one.out_s, one.back_s, places[one.link], len(one.needs))
            for row, record in enumerate(records)
            for place, one in enumerate(record.options)
        ]
        of_each = np.array(cells, np.float64).reshape(-1, 8).T
        at = of_each[0].astype(np.int64), of_each[1].astype(np.int64)
        arrays = self.resident, self.seconds, self.out_s, self.back_s, self.link, self.is_made
        for array, values in zip(arrays, of_each[2:], strict=True):
            array[at] = values
        self.rows = np.arange(self.count)
        used = [record.released if record.used is None else record.used for record in records]
        self.used: Floats = np.array(used, np.float64)
        """When what came back went; what is kept does not go before it is released."""
        goes = np.unique(np.concatenate([self.used, self.released]))
        self.points = np.unique(np.concatenate([self.saved, np.nextafter(goes, -np.inf)]))
        """When memory is looked at: just after each tensor was saved, and just before each went."""
        self.on_freed = Moments(self.freed, self.points)
        self.on_wanted = Moments(self.wanted, self.points)
        self.on_released = Moments(self.released, self.points)
        self.on_saved = Moments(self.saved, self.points)
        self.on_used = Moments(self.used, self.points) if (self.used < self.released).any() else None
        self.so_far = self.on_saved.until(self.nbytes)
        """Bytes that were saved by each point."""
        self.needs = Needs(records, self)

    def used_up(self, back: Floats) -> Floats | float:
        """Return the bytes of what came back, was used, and is not released yet, by each point; 0 if none ever are."""
        return 0.0 if self.on_used is None else self.on_used.until(back) - self.on_released.until(back)

    def priced(self, choice: Ints) -> float:
        """Return the seconds that the options of a choice add by themselves."""
        return float(self.seconds[self.rows, choice].sum())
