"""The module compiled from ``native/``, where the package was installed with a C compiler, and its hooks."""

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Protocol, cast


class Functions(Protocol):
    """Functions that run for every saved tensor, in place of their callers' own lines of Python.

    Those that work on arrays are in :mod:`tensorstash.kernels`.
    """

    @property
    def Block(self) -> type:  # noqa: N802
        """The base of :class:`tensorstash.host.blocks.Block`."""
        ...

    def keeping(
        self,
        small: Mapping[int, Any],
        min_bytes: int,
        large: Mapping[int, Any] | None,
        nbytes: Callable[[Any], int],
        state: object,
        alias: Callable[[Any], Any],
        version: Callable[[Any], int],
        pack: Callable[[Any], Any],
        /,
    ) -> Callable[[Any], Any]:
        """Return ``pack`` with a short way for tensors that are kept whatever they are.

        Args:
            small: counters, by bytes, of tensors below ``min_bytes``.
            min_bytes: in bytes.
            large: counters of all others, or None for those that ``pack`` has to look at; so it does at those that have
                no counter, or one that is used up.
            nbytes: of a tensor; may raise RuntimeError, which is left to ``pack``.
            state: the first item of a handle.
            alias: of a tensor; the second item.
            version: of a tensor; the third item.
            pack: the function that defines the result.
        """
        ...

    def restoring(self, restore: Callable[[Any], Any], /) -> Callable[[Any], Any]:
        """Return :func:`tensorstash.engine.handle.restore` with a short way for unchanged tensors that were kept."""
        ...

    def packing(
        self,
        innermost: dict[int, Any],
        box: Callable[[Any], Any],
        unhooked: Callable[[Any], Any],
        not_packed: Callable[[Any, BaseException], Any],
        /,
    ) -> Callable[[Any], Any]:
        """Return the pack hook of :func:`tensorstash.backends.paddle.packed.pair_for_paddle`.

        Args:
            innermost: scopes by thread.
            box: gets the scope and the result of its ``pack``, in a tuple.
            unhooked: takes a saved tensor where no scope is ready for it.
            not_packed: takes a scope and the exception of its ``pack``.
        """
        ...

    def unpacking(
        self,
        box: type,
        unboxed: Callable[[Any], Any],
        hook_failed: Callable[[BaseException], None],
        backwards: Any,
        with_memory: Callable[[Any], Any],
        /,
    ) -> Callable[[Any], Any]:
        """Return the unpack hook of :func:`tensorstash.backends.paddle.packed.pair_for_paddle`.

        Args:
            box: the type that ``packing`` was given.
            unboxed: takes everything else.
            hook_failed: takes the exception.
            backwards: whose ``release`` says whether the box is to be emptied.
            with_memory: takes a tensor without memory, and returns its stand-in.
        """
        ...


@cache
def load() -> ModuleType | None:
    """Return the compiled module, or None where nothing was compiled; one that is there but broken is an error."""
    return None if find_spec("tensorstash.host._native") is None else import_module("tensorstash.host._native")


functions = cast(Functions | None, load())
"""The hooks; None where nothing was compiled. A test sets it to None to see that everything works without."""
