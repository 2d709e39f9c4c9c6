"""What a framework tells of the other processes of a training."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


class KeyValues(Protocol):
    """Texts by key that all processes of a training share, as frameworks have them to find one another."""

    def set(self, key: str, value: str, /) -> None:
        """Set the text of a key."""
        ...

    def get(self, key: str, /) -> bytes:
        """Return the text of a key; waits until it has one."""
        ...

    def add(self, key: str, amount: int, /) -> int:
        """Add to the number of a key, which is 0 at first; return the sum. Never waits for another process."""
        ...


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes of a training.

    Args:
        rank: of this process.
        count: of all.
        shared: what they have in common.
    """

    rank: int
    count: int
    shared: KeyValues


@runtime_checkable
class SupportsRanks(Protocol):
    """A backend whose framework trains with several processes."""

    def ranks(self) -> Ranks | None:
        """Return the processes that train together now; None if this one is alone."""
        ...
