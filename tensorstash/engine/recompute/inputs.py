"""What recipes need and the graph has no other name for: tensors that stay as they are."""

from typing import Any

from tensorstash.engine.handle import Kept, restore
from tensorstash.engine.state import SessionState
from tensorstash.errors import modified
from tensorstash.host import native

_COMPILED = None if native.functions is None else native.functions.Kept


def kept_in(handle: Any) -> Kept | None:
    """Return what a handle says of a tensor that stays as it is, in Python or compiled; None for all others."""
    kind = type(handle)
    if kind is _COMPILED:
        return handle.state, handle.alias, handle.version
    return handle if kind is tuple and len(handle) == 3 else None


class KeptHandle:
    """A tensor that stays as it is, as :data:`~tensorstash.engine.handle.Kept`, which nobody can refer to weakly.

    Args:
        kept: the handle that it would be otherwise.
    """

    __slots__ = ("__weakref__", "_kept", "is_made")

    depth = 0
    """Operations that are run for it."""
    is_exact = True
    """Whether what comes back is equal to the bit."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self.is_made = False
        """Whether the graph has made the tensor, as far as that is known."""

    @property
    def state(self) -> SessionState:
        """Of the session that has kept it."""
        return self._kept[0]

    def __call__(self) -> Any:
        """Return the tensor; see :func:`~tensorstash.engine.handle.restore`."""
        return restore(self._kept)

    @property
    def tensor(self) -> Any:
        """The tensor, whatever has become of it."""
        return self._kept[1]

    def add_user(self) -> None:
        """Take note of a recipe that will ask; it gets what everybody gets."""

    def peek(self) -> Any:
        """Return the tensor, to look at it and drop it.

        Raises:
            SavedTensorModifiedError: it was modified in place since it was saved.
        """
        state, alias, version = self._kept
        now = state.version(alias)
        if now != version:
            raise modified(state.backend.describe(alias), now, version)
        return alias
