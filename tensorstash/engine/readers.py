"""Readers of contents: the demands of operations, which decide whether codecs may lose something."""

from collections.abc import Hashable

from tensorstash.protocols import Demand, strictest

_REMEMBERED_KINDS = 4096

_TELLING = 8
"""Saves from which on two steps with the same sequence are taken to be the same program."""


class Trail:
    """The sequence of saved tensors of one entry of a scope, as one number that grows with it. For one thread.

    Tensors saved by the last operations of a scope are found in no graph before backward runs. But if a scope saves the
    same sequence of tensors, made by the same operations, as in an earlier step, then the demands learned in the
    backward of that step holds for each place in it.
    """

    def __init__(self) -> None:
        self._saved = 0
        self._length = 0

    def add(self, saved: Hashable) -> int:
        """Append the name of a saved tensor; return its place."""
        self._saved = hash((self._saved, saved))
        self._length += 1
        return self._length - 1

    def kind(self, place: int) -> Hashable:
        """Return the name of a place in the sequence so far; None if that is too short to tell programs apart."""
        return (self._saved, place) if self._length >= _TELLING else None


class Reading:
    """The readers of one content that codecs may lose something of, as far as these are known."""

    def __init__(self) -> None:
        self.demand: Demand = "any"
        """The strictest of the readers that are known."""
        self.known = 0
        """Handles of the content whose readers are known."""
        self.place: tuple[Trail, int] | None = None
        """Position of the save; None where no scope was in force."""
        self.trusts_learned = False
        """Whether it was encoded for readers that others of its kind had, in steps before."""

    def saved(self, trail: Trail, place: int) -> None:
        """Note the position of the save."""
        self.place = trail, place

    def is_read_by(self, demand: Demand) -> None:
        """Note one more reader, and its demand."""
        self.known += 1
        if demand != "any":
            self.demand = strictest((self.demand, demand)) or demand

    def decided(self, known: int, *, is_learned: bool) -> None:
        """Note that the content's place is decided, by this many readers; perhaps by those of steps before."""
        self.known, self.trusts_learned = max(self.known, known), is_learned

    @property
    def kind(self) -> Hashable:
        """The name of contents that the same operations read in other steps; None where none is known."""
        return None if self.place is None else self.place[0].kind(self.place[1])


Learned = dict[Hashable, Demand]
"""The demands of readers that were found only when they asked, by kind of content."""


def guess(learned: Learned, reading: Reading) -> Demand:
    """Return the demand of known readers of a content, and of others as in earlier steps."""
    return strictest((reading.demand, learned.get(reading.kind, "exact"))) or reading.demand


def learn(learned: Learned, kind: Hashable, demand: Demand) -> None:
    """Remember the demand of a reader for a kind of content."""
    if len(learned) >= _REMEMBERED_KINDS:
        learned.clear()
    known = learned.get(kind, demand)
    learned[kind] = strictest((known, demand)) or demand
