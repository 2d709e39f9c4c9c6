"""The objects in Paddle's graph in place of saved tensors."""

import threading
from _thread import get_ident
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from types import CellType
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import paddle
from paddle import Tensor
from paddle.base.framework import _current_expected_place

from tensorstash.backends.paddle.backward import backward
from tensorstash.backends.paddle.layout import private_copy, same_memory
from tensorstash.errors import SavedTensorModifiedError, StashError

Pack = Callable[[Tensor], Any]
Unpack = Callable[[Any], Tensor]

_STORAGES = 2


@dataclass(frozen=True, eq=False)
class Settings:
    """Settings of one call, as the operation takes them; they live as long as anything that the new node has saved."""

    values: tuple[Any, ...]


WRITES = Settings(())
"""Of an operation whose backward writes into a tensor that it saved."""

SETTINGS: WeakValueDictionary[int, Settings] = WeakValueDictionary()
"""By the address of a node, which lives as long as its settings."""


class _Call(threading.local):
    def __init__(self) -> None:
        self.settings: Settings | None = None
        """Of an operation, if it is one of those that note them."""
        self.contexts: list[Any] = []
        """For each ``PyLayer.apply``, the context if that has saved."""


call = _Call()
"""The calls that are under way on this thread."""


class Scope:
    """A pair in force, which ``source`` has entered and will leave; lives as long as anything it packed."""

    def __init__(self, source: object, pack: Pack | None, unpack: Unpack | None, *, private: bool = False) -> None:
        self.source: object = source
        self.pack: Any = pack
        self.unpack: Any = unpack
        self.private = private
        self.thread = get_ident()
        self.ready = pack is not None  # nor inside pack, whose own operations are none of the pair's business
        self.failure: BaseException | None = None
        self.storages: list[tuple[Tensor, object]] = []

    def token(self, tensor: Tensor) -> object:
        """Return the token of the tensor's storage: a known one, or a new one.

        An address says nothing once its memory may have been freed and given out again, and Paddle has nothing that
        sees a storage die. So the two storages seen last are held, which proves that they are alive: operations share
        an input, or save a buffer twice, in short succession. Content that is saved again later is stored again.
        """
        for index, (held, token) in enumerate(self.storages):
            if held._is_shared_buffer_with(tensor):
                self.storages.insert(0, self.storages.pop(index))
                return token
        token = object()
        # A view has an allocation of its own choice, whatever memory the tensor is given later.
        self.storages.insert(0, (same_memory(tensor), token))
        del self.storages[_STORAGES:]
        return token

    def refusal(self) -> CellType:
        """Return what stands for a tensor that could not be packed, or came after one that could not."""
        text = f"{type(self.failure).__qualname__}: {self.failure}"
        return CellType((Refusal, Refusal(self, text), None))

    def end(self) -> BaseException | None:
        """Drop the parts that only the block needs; return an exception of ``pack`` that nobody has got."""
        failure, self.failure = self.failure, None
        self.source = self.pack = None  # they may hold an exception, and its traceback a saved tensor
        self.storages.clear()
        return failure


class Refusal(NamedTuple):
    """An exception of ``pack``, in words: its traceback holds the tensor, which may lead back here."""

    scope: Scope
    error: str

    def unpack(self) -> Tensor:
        """Raise the exception, or once the block has raised it, another one."""
        raise self.scope.failure or StashError(
            f"a saved tensor is asked for that could not be packed ({self.error}), as was reported then"
        )


class Unhooked(NamedTuple):
    """A tensor that is saved as without hooks, with its version then."""

    alias: Tensor
    version: int

    def unpack(self) -> Tensor:
        """Return the tensor; raise SavedTensorModifiedError if it was modified in place since it was saved."""
        alias, version = self.alias, self.alias.inplace_version
        if version != self.version:
            raise SavedTensorModifiedError(
                f"a tensor of shape {tuple(alias.shape)} used in gradient computation has been modified by an inplace "
                f"operation: its version is {version}, expected {self.version}"
            )
        return alias


def unhooked(tensor: Tensor) -> CellType:
    """Return what stands for a tensor of no pair's, which comes back as a copy where backward writes into it."""
    mark = 0 if call.settings is WRITES else None
    return CellType((Unhooked, Unhooked(tensor.detach(), tensor.inplace_version), mark))


def unpacked(packed: CellType) -> Tensor:
    """Return the tensor behind whatever stands for it; empty that if nobody will ask again."""
    packer, value, mark = packed.cell_contents  # a scope, or the class of the value
    tensor: Tensor = packer.unpack(value)
    if backward.release:
        del packed.cell_contents
    if not tensor._is_initialized():
        return with_memory(tensor)
    return private_copy(tensor) if type(mark) is int and mark in (0, tensor.data_ptr()) else tensor


def with_memory(tensor: Tensor) -> Tensor:
    """Return the tensor, or bytes enough for one whose memory was let go of before it was saved.

    The double gradients of some operations, such as ``add``, save tensors for their shape alone, without memory. A
    hook's result must have it.
    """
    nbytes = prod(tensor.shape) * tensor.element_size() if tensor.is_dense() else 0
    if not nbytes:
        return tensor
    place = _current_expected_place()  # type: ignore[no-untyped-call]
    return paddle._C_ops.empty([nbytes], paddle.uint8, place)
