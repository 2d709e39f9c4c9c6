"""The module compiled from ``native/``, where the package was installed with a C compiler."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Protocol, cast


class Functions(Protocol):
    """The compiled module beside its functions on arrays, which :mod:`tensorstash.kernels` declares."""

    @property
    def Block(self) -> type:  # noqa: N802
        """The base of :class:`tensorstash.host.blocks.Block`."""
        ...

    def guarded(self, function: Callable[[Any], Any], handler: Callable[[BaseException], Any], /) -> Any:
        """See :func:`tensorstash.host.blocks.guarded`."""
        ...


@cache
def load() -> ModuleType | None:
    """Return the compiled module, or None where nothing was compiled; one that is there but broken is an error."""
    return None if find_spec("tensorstash.host._native") is None else import_module("tensorstash.host._native")


functions = cast(Functions | None, load())
"""The module; None where nothing was compiled. A test sets it to None to see that everything works without."""
