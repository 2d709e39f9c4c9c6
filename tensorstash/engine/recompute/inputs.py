"""What recipes need and the graph has no other name for: tensors that stay as they are."""

from collections.abc import Hashable, Iterable
from typing import Any

from tensorstash.abilities.recipes import Leaf, Producers
from tensorstash.engine.handle import Kept
from tensorstash.engine.state import SessionState
from tensorstash.errors import modified
from tensorstash.host.arrays import as_bytes
from tensorstash.host.checksum import checksum


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

    def __call__(self) -> Any:
        """Return the tensor; see :func:`~tensorstash.engine.handle.restore`."""
        tensor = self.peek()
        self.state.was_asked = True
        return tensor

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


def marked(
    inputs: Iterable[Any], state: SessionState, producers: Producers[Any]
) -> tuple[list[Hashable], tuple[Hashable, ...]]:
    """Return what tells for each input whether it was written to, and what names all of them together.

    Leaves are known by version and a few elements, and what the graph has not made by a checksum: others may write to
    that at any time, and nobody sees it. All else tells itself, and its mark is None.

    Returns:
        A mark for each; and what is the same for recipes that are made of the same, as long as these inputs live.
    """
    marks: list[Hashable] = []
    names: list[Hashable] = []
    for each in inputs:
        mark: Hashable = None
        if type(each) is Leaf:
            mark = state.version(each.tensor), producers.sample(each.tensor)
            names.append((id(each.tensor), mark))
        elif isinstance(each, KeptHandle):
            mark = None if each.is_made else checksum_of(each.tensor, producers)
            # What is copied may go, and its address may name another: one of the same elements, says the mark.
            names.append((id(each.tensor), mark, each.version))
        else:
            if not each.is_made and state.held is not None and state.held.holds(each.payload):
                mark = checksum_of(each.payload.alias, producers)
            names.append((id(each), mark))
        marks.append(mark)
    return marks, tuple(names)


def checksum_of(tensor: Any, producers: Producers[Any]) -> int | None:
    """Return a checksum of a tensor's elements as they are now; None for what is not looked at."""
    content = producers.content(tensor)
    return None if content is None else checksum(as_bytes(content))
