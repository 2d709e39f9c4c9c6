"""The objects in Paddle's graph in place of saved tensors, and the functions that Paddle calls."""

from _thread import get_ident
from collections.abc import Callable, Hashable
from functools import partial
from math import prod
from types import CellType
from typing import Any

import paddle
from paddle import Tensor
from paddle.base.framework import _current_expected_place

from tensorstash.backends.paddle.layout import private_copy
from tensorstash.backends.paddle.repairs.backward import backwards, hook_failed, last_failure
from tensorstash.backends.paddle.repairs.patches import Lease
from tensorstash.errors import BackendError, SavedTensorModifiedError, StashError
from tensorstash.host.blocks import guarded

Pack = Callable[[Tensor], Any]
Unpack = Callable[[Any], Tensor]


class Scope:
    """One pair of hooks in force for one thread; lives as long as anything it packed.

    Args:
        source: who entered it and will leave it.
        pack: called on this thread only.
        unpack: called from any thread.
        lease: of the patches that hooks need.
        private: whether a result of ``unpack`` is either the saved tensor's memory or nobody else's.
    """

    __slots__ = ("_lease", "failure", "pack", "private", "ready", "recent", "settings", "source", "thread", "unpack")

    def __init__(self, source: object, pack: Pack, unpack: Unpack, lease: Lease, *, private: bool = False) -> None:
        self.private = private
        self.source: object = source
        self.pack = pack
        self.unpack = unpack
        self.thread = get_ident()
        self.ready = True  # not inside pack, whose own operations are none of the pair's business
        self.failure: BaseException | None = None
        self.recent: list[tuple[Tensor, object]] = []
        self.settings: dict[int, tuple[Hashable, ...]] = {}
        self._lease = lease

    def end(self) -> BaseException | None:
        """Drop the parts that only the block needs; return an exception of ``pack`` that nobody has got."""
        failure, self.failure = self.failure, None
        self.source, self.pack = None, _ended  # they may hold an exception, and its traceback a saved tensor
        self.recent.clear()
        self.settings.clear()
        return failure


def _ended(tensor: Tensor) -> Any:
    raise AssertionError("a scope that has ended was asked to pack")


def pair_for_paddle(
    innermost: dict[int, Scope], registration: Callable[[], Lease | None], tidy: Callable[[], None]
) -> tuple[Callable[[Tensor | None], Any], Callable[[Any], Tensor | None]]:
    """Return the one pair that Paddle knows, for the operations of every thread.

    An exception of a hook does not go through C++, which would leak the arguments and the graph behind them,
    switch gradient recording off and make an ``OSError`` of it. One of ``pack`` is raised when the scope ends,
    and unpack before that. One of ``unpack`` is raised by backward: it refuses the None that it gets instead.

    Args:
        innermost: by thread; looked into at every call.
        registration: keeps the patches in force while the pair is.
        tidy: called where a tensor is saved outside of every scope.
    """

    def unhooked(tensor: Tensor | None) -> Any:
        lease = registration()
        if not innermost:
            tidy()
        return _unhooked(tensor, innermost.get(get_ident()), lease)

    def pack_for_paddle(tensor: Tensor | None) -> Any:
        scope = innermost.get(get_ident())
        if scope is None or not scope.ready or tensor is None:
            return unhooked(tensor)
        scope.ready = False
        # A cell is the cheapest box that can be emptied; tuples and lists are not opaque to Paddle.
        packed = CellType((scope, scope.pack(tensor)))
        scope.ready = True
        return packed

    def not_packed(error: BaseException) -> Any:
        scope = innermost.get(get_ident())
        if scope is None:
            raise error
        scope.failure = error  # and never ready again
        return _NotPacked(scope, error)

    def unpack_for_paddle(packed: Any) -> Tensor | None:
        if type(packed) is not CellType:
            restored: Tensor | None = packed.restore()
            return restored if restored is None else with_memory(restored)
        scope, value = packed.cell_contents
        tensor: Tensor = scope.unpack(value)
        if backwards.release:
            del packed.cell_contents
        return tensor if tensor._is_initialized() else with_memory(tensor)

    return guarded(pack_for_paddle, not_packed), guarded(unpack_for_paddle, hook_failed)


def with_memory(tensor: Tensor) -> Tensor:
    """Return the tensor, or bytes enough for one whose memory was let go of before it was saved.

    The double gradients of some operations, such as ``add``, save tensors that they need for their shape alone and
    that have no memory. Without hooks Paddle gives them back like that; a hook's result must have it.
    """
    if tensor._is_initialized() or not tensor.is_dense():
        return tensor
    nbytes = prod(tensor.shape) * tensor.element_size()
    if not nbytes:
        return tensor
    place = _current_expected_place()  # type: ignore[no-untyped-call]
    return paddle._C_ops.empty([nbytes], paddle.uint8, place)


def _unhooked(tensor: Tensor | None, scope: Scope | None, lease: Lease | None) -> Any:
    if tensor is None:
        return _Absent()
    if scope is not None and scope.failure is not None:
        return _NotPacked(scope, scope.failure)
    return Unhooked(tensor, lease)


class Guard:
    """While it is entered, tensors that its thread saves come back in memory that backward may write into.

    Args:
        pack: of the pair that Paddle knows, as is ``unpack``.
        unpack: likewise.
        innermost: scopes by thread; changed.
        lease: of the patches that hooks need.
    """

    __slots__ = ("_innermost", "_outer", "_pack", "_scope", "_unpack")

    def __init__(
        self,
        pack: Callable[[Tensor | None], Any],
        unpack: Callable[[Any], Tensor | None],
        innermost: dict[int, Scope],
        lease: Lease,
    ) -> None:
        self._pack = pack
        self._unpack = unpack
        self._innermost = innermost
        self._outer = innermost.get(get_ident())
        self._scope = Scope(None, self._guarded, partial(_written_into, unpack), lease)

    def __enter__(self) -> None:
        self._innermost[self._scope.thread] = self._scope

    def __exit__(self, *_: object) -> None:
        self._put_back()
        self._scope.end()

    def _put_back(self) -> None:
        if self._outer is None:
            del self._innermost[self._scope.thread]
        else:
            self._innermost[self._scope.thread] = self._outer

    def _guarded(self, tensor: Tensor) -> Any:
        """Save a tensor as if there were no guard, and remember where it was."""
        self._put_back()
        try:
            packed = self._pack(tensor)
        finally:
            self._innermost[self._scope.thread] = self._scope
        is_private = self._outer is not None and self._outer.private
        return packed, tensor.data_ptr() if is_private and tensor._is_initialized() else None


def _written_into(unpack: Callable[[Any], Tensor | None], guarded: tuple[Any, int | None]) -> Tensor:
    packed, address = guarded
    tensor = unpack(packed)
    if tensor is None:
        raise last_failure()
    is_private = address is not None and tensor.data_ptr() != address
    return tensor if is_private or not tensor._is_initialized() else private_copy(tensor)


class Unhooked:
    """A tensor saved as Paddle would have without hooks, with its in-place check.

    Args:
        tensor: the saved one.
        lease: of the patches that tell whether backward keeps its graph; they outlive the registration here.
    """

    __slots__ = ("_alias", "_lease", "_version")

    def __init__(self, tensor: Tensor, lease: Lease | None) -> None:
        self._lease = lease
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


class _NotPacked:
    """A tensor that could not be packed, or came after one that could not."""

    __slots__ = ("_error", "_scope")

    def __init__(self, scope: Scope, error: BaseException) -> None:
        self._scope = scope
        # Its traceback holds the tensor, which may lead back here.
        self._error = f"{type(error).__qualname__}: {error}"

    def restore(self) -> Tensor:
        """Raise the exception of ``pack``."""
        if self._scope.failure is not None:
            raise self._scope.failure
        raise StashError(f"a saved tensor is asked for that could not be packed ({self._error}), as was reported then")


class _Absent:
    """A ``None`` among saved tensors."""

    __slots__ = ()

    def restore(self) -> Any:
        return None
