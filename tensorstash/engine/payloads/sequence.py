"""What one entry of a scope has saved, in order: where the same is saved again, the same operations read it."""

from collections.abc import Hashable

_TELLING = 8
"""Saves from which on two steps with the same sequence are taken to be the same program."""


class Trail:
    """The sequence of what was saved, as one number that grows with it. For one thread.

    What the last operations of a scope have saved is found in no graph before backward runs. But if a scope saves the
    same sequence of tensors, made by the same operations, as in an earlier step, then what was learned in the backward
    of that step holds for each place in it.
    """

    __slots__ = ("_length", "_saved")

    def __init__(self) -> None:
        self._saved = 0
        self._length = 0

    def add(self, saved: Hashable) -> int:
        """Append what names a saved tensor; return its place."""
        self._saved = hash((self._saved, saved))
        self._length += 1
        return self._length - 1

    def kind(self, place: int) -> Hashable:
        """Return the name of a place in the sequence so far; None if that is too short to tell programs apart."""
        return (self._saved, place) if self._length >= _TELLING else None
