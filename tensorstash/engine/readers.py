"""Readers of contents: the demands of operations, which decide whether codecs may lose something."""

from collections.abc import Hashable

from tensorstash.protocols import Demand, strictest

_REMEMBERED_KINDS = 4096

_TELLING = 8  # saves from which on two steps with the same sequence are taken to be the same program

Trail = list[int]
"""The sequence of saved tensors of one entry of a scope: a number that grows with it, and its length. For one thread.

Tensors saved by the last operations of a scope are found in no graph before backward runs. But if a scope saves the
same sequence of tensors, made by the same operations, as in an earlier step, then the demands learned in the
backward of that step hold for each place in it.
"""

Learned = dict[Hashable, Demand]
"""The demands of readers that were found only when they asked, by kind of content."""


class Reading:
    """The readers of one content that codecs may lose something of, as far as these are known."""

    def __init__(self, learned: Learned) -> None:
        self._learned = learned
        self.demand: Demand = "any"
        """The strictest of the readers that are known."""
        self.known = 0
        """Handles of the content whose readers are known."""
        self.place: tuple[Trail, int] | None = None
        """Position of the save; None where no scope was in force."""
        self.trusts_learned = False
        """Whether it was encoded for readers that others of its kind had, in steps before."""

    def saved(self, trail: Trail, saved: Hashable) -> None:
        """Append the name of the saved tensor to a trail, and note its position there."""
        self.place = trail, trail[1]
        trail[:] = hash((trail[0], saved)), trail[1] + 1

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
        if self.place is None:
            return None
        (so_far, length), place = self.place
        return (so_far, place) if length >= _TELLING else None

    def guess(self) -> Demand:
        """Return the demand of the known readers, and of others as in earlier steps."""
        return strictest((self.demand, self._learned.get(self.kind, "exact"))) or self.demand

    def learn(self, demand: Demand) -> None:
        """Remember the demand of a reader for contents of this kind."""
        kind, learned = self.kind, self._learned
        if len(learned) >= _REMEMBERED_KINDS:
            learned.clear()
        learned[kind] = strictest((learned.get(kind, demand), demand)) or demand
