"""Recipe inputs that are kept in memory rather than stored."""

from typing import Any

from tensorstash.abilities.recipes import Leaf
from tensorstash.engine.handle import Kept
from tensorstash.engine.state import SessionState
from tensorstash.errors import modified


def kept_in(handle: Any) -> Kept | None:
    """Return what a handle says of a tensor that stays as it is; None for all others."""
    return handle if type(handle) is tuple and len(handle) == 3 else None


class KeptHandle:
    """A tensor that stays as it is, as :data:`~tensorstash.engine.handle.Kept`, which nobody can refer to weakly.

    Args:
        kept: the handle that it would be otherwise.
    """

    __slots__ = ("__weakref__", "is_made", "state", "tensor", "version")

    state: SessionState
    """Of the session that has kept it."""
    tensor: Any
    """Itself, whatever has become of it."""
    version: int
    """In place, when it was saved."""

    def __init__(self, kept: Kept) -> None:
        self.state, self.tensor, self.version = kept
        self.is_made = False
        """Whether the graph has made the tensor, as far as that is known."""

    def is_from(self, producer: str) -> None:
        """Note the operation of the graph that has made the tensor; empty for none."""
        self.is_made = bool(producer)

    def __call__(self) -> Any:
        """Return the tensor; see :func:`~tensorstash.engine.handle.restore`."""
        return self.state.restore_kept(self.tensor, self.version)

    def peek(self) -> Any:
        """Return the tensor, to look at it and drop it.

        Raises:
            SavedTensorModifiedError: it was modified in place since it was saved.
        """
        tensor = self.tensor
        now = self.state.version(tensor)
        if now != self.version:
            raise modified(self.state.backend.describe(tensor), now, self.version)
        return tensor


AS_THEY_ARE = Leaf, KeptHandle
"""Inputs that are there without anything being stored or made."""
