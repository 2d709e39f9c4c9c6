"""The objects in Paddle's graph in place of saved tensors."""

from _thread import get_ident
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from types import CellType
from typing import Any
from weakref import WeakValueDictionary

import paddle
from paddle import Tensor
from paddle.base.framework import _current_expected_place

from tensorstash.backends.paddle.layout import private_copy
from tensorstash.backends.paddle.repairs.backward import backward
from tensorstash.errors import BackendError, SavedTensorModifiedError, StashError

Pack = Callable[[Tensor], Any]
Unpack = Callable[[Any], Tensor]


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Settings:
    """Settings of one call, as the operation takes them; they live as long as anything that the new node has saved."""

    values: tuple[Any, ...]


WRITES = Settings(())
"""Of an operation whose backward writes into a tensor that it saved."""


class Scope:
    """A pair of :class:`~tensorstash.backends.paddle.hooks.HookScope` in force; lives as long as anything it packed.

    Args:
        source: who entered it and will leave it.
        pack: None where no pair is in force.
        unpack: of the pair.
        private: of the pair.
    """

    __slots__ = ("call", "failure", "pack", "private", "ready", "recent", "settings", "source", "thread", "unpack")

    def __init__(self, source: object, pack: Pack | None, unpack: Unpack | None, *, private: bool = False) -> None:
        self.private = private
        self.source: object = source
        self.pack: Any = pack
        self.unpack: Any = unpack
        self.thread = get_ident()
        self.ready = pack is not None  # nor inside pack, whose own operations are none of the pair's business
        self.failure: BaseException | None = None
        self.recent: list[tuple[Tensor, object]] = []
        self.call: Settings | None = None
        """Of the call under way, if it notes them."""
        self.settings: WeakValueDictionary[int, Settings] = WeakValueDictionary()
        """By the address of a node, which lives as long as its settings."""

    def end(self) -> BaseException | None:
        """Drop the parts that only the block needs; return an exception of ``pack`` that nobody has got."""
        failure, self.failure = self.failure, None
        self.source = self.pack = None  # they may hold an exception, and its traceback a saved tensor
        self.recent.clear()
        return failure


def unpacked(packed: Any) -> Tensor:
    """Return the tensor behind whatever stands for it; drop that if nobody will ask again."""
    if type(packed) is not CellType:
        return with_memory(packed.restore())
    scope, value, mark = packed.cell_contents
    tensor: Tensor = scope.unpack(value)
    if backward.release:
        del packed.cell_contents
    if not tensor._is_initialized():
        return with_memory(tensor)
    return private_copy(tensor) if type(mark) is int and mark in (0, tensor.data_ptr()) else tensor


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


class Unhooked:
    """A tensor saved as Paddle would have without hooks, with its in-place check; copied where backward writes."""

    __slots__ = ("_alias", "_is_written", "_version")

    def __init__(self, tensor: Tensor, is_written: bool) -> None:
        self._alias: Tensor | None = tensor.detach()
        self._is_written = is_written
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
        if backward.release:
            self._alias = None
        if version != self._version:
            raise SavedTensorModifiedError(
                f"a tensor of shape {tuple(alias.shape)} used in gradient computation has been modified by an inplace "
                f"operation: its version is {version}, expected {self._version}"
            )
        return private_copy(alias) if self._is_written else alias


class NotPacked:
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
