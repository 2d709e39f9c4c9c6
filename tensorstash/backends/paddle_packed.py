"""What Paddle's graph holds in place of saved tensors, and the functions that Paddle calls."""

from _thread import get_ident
from collections.abc import Callable
from types import CellType
from typing import Any

from paddle import Tensor

from tensorstash.backends.paddle_backward import backwards, hook_failed
from tensorstash.backends.paddle_patches import Lease
from tensorstash.errors import BackendError, SavedTensorModifiedError, StashError

Pack = Callable[[Tensor], Any]
Unpack = Callable[[Any], Tensor]


class ScopeState:
    """What the functions of one pair share; lives as long as anything they packed.

    Args:
        lease: of the patches that hooks need.
    """

    __slots__ = ("_lease", "failure", "ready", "recent")

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self.ready = True  # not inside pack, whose own operations are none of the pair's business
        self.failure: BaseException | None = None
        self.recent: list[tuple[Tensor, object]] = []

    def end(self) -> BaseException | None:
        """Drop what only the scope needs; return what ``pack`` has raised and nobody has been told."""
        failure, self.failure = self.failure, None
        self.recent.clear()
        return failure


def for_paddle(
    pack: Pack, unpack: Unpack, state: ScopeState, elsewhere: Callable[[Tensor | None], Any]
) -> tuple[Callable[[Tensor | None], Any], Unpack]:
    """Return the pair as Paddle calls it: from any thread, and holding on to what it packed.

    What ``pack`` raises does not go through C++, which would leak the tensor and all of the graph behind it, switch
    gradient recording off and make an ``OSError`` of it. The scope raises it when it ends, and unpack before that.

    Args:
        pack: for operations of the calling thread; so is ``unpack``.
        state: kept alive by what is packed.
        elsewhere: packs all others' tensors, for ``unpack`` to give back.
    """
    thread = get_ident()

    def pack_for_paddle(tensor: Tensor | None) -> Any:
        if not state.ready or get_ident() != thread or tensor is None:
            return elsewhere(tensor)
        state.ready = False
        try:
            # A cell is the cheapest box that can be emptied; tuples and lists are not opaque to Paddle.
            packed = CellType(pack(tensor))
        except BaseException as error:
            state.failure = error  # and never ready again
            return NotPacked(state, error)
        state.ready = True
        return packed

    def unpack_for_paddle(packed: Any) -> Tensor:
        try:
            if type(packed) is not CellType:
                tensor: Tensor = packed.restore()
                return tensor
            tensor = unpack(packed.cell_contents)
        except BaseException as error:
            hook_failed(error)
            if backwards.release and type(packed) is CellType:
                del packed.cell_contents  # C++ leaks the cell
            raise
        if backwards.release:
            del packed.cell_contents
        return tensor

    unpack_for_paddle.state = state  # type: ignore[attr-defined]
    return pack_for_paddle, unpack_for_paddle


class NotPacked:
    """A tensor that could not be packed, or came after one that could not.

    Args:
        state: of the scope that will raise the error.
        error: what ``pack`` has raised.
    """

    __slots__ = ("_error", "_state")

    def __init__(self, state: ScopeState, error: BaseException) -> None:
        self._state = state
        # Its traceback holds the tensor, which may lead back here.
        self._error = f"{type(error).__qualname__}: {error}"

    def restore(self) -> Tensor:
        """Raise what ``pack`` has raised."""
        if self._state.failure is not None:
            raise self._state.failure
        raise StashError(f"a saved tensor is asked for that could not be packed ({self._error}), as was reported then")


class Unhooked:
    """A tensor saved as Paddle would have without hooks, with its in-place check.

    Args:
        tensor: what is saved.
    """

    __slots__ = ("_alias", "_version")

    def __init__(self, tensor: Tensor) -> None:
        self._alias: Tensor | None = tensor.detach()
        self._version = tensor.inplace_version

    def restore(self) -> Tensor:
        """Return the tensor, and drop it if nobody will ask again.

        Raises:
            SavedTensorModifiedError: it was modified in place since it was saved.
        """
        alias = self._alias
        if alias is None:
            raise BackendError("a saved tensor was asked for after a backward without retain_graph had released it")
        version = alias.inplace_version
        if backwards.release:
            self._alias = None
        if version != self._version:
            raise SavedTensorModifiedError(
                f"a tensor of shape {tuple(alias.shape)} used in gradient computation has been modified by an inplace "
                f"operation: its version is {version}, expected {self._version}"
            )
        return alias


class Routed:
    """What the pair of one thread packed while Paddle called that of another.

    Args:
        unpack: the right one.
        packed: for it.
    """

    __slots__ = ("_packed", "_unpack")

    def __init__(self, unpack: Unpack, packed: Any) -> None:
        self._unpack = unpack
        self._packed = packed

    def restore(self) -> Tensor:
        """Return the tensor."""
        return self._unpack(self._packed)


class Absent:
    """A ``None`` among saved tensors."""

    __slots__ = ()

    def restore(self) -> Any:
        """Return None."""
        return None
