"""Code that no interrupt gets past: blocks that end, and functions whose exceptions go to a handler."""

from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

from tensorstash.host import native

_MOST_ATTEMPTS = 1000


class PythonBlock:
    """The base of :class:`Block` where nothing is compiled; an interrupt where ``__exit__`` begins ends it."""

    __slots__ = ()

    def __enter__(self: Any) -> Any:
        try:
            return self.enter()
        except BaseException:
            _made_up_for(self.undo)
            raise

    def __exit__(self: Any, *raised: Any) -> Any:
        try:
            return self.leave(*raised)
        except BaseException:
            _made_up_for(self.finish, *raised)
            raise


def _made_up_for(call: Callable[..., object], *arguments: object) -> None:
    for _ in range(_MOST_ATTEMPTS):
        with suppress(BaseException):
            call(*arguments)
            return


def guarded(function: Callable[[Any], Any], handler: Callable[[BaseException], Any]) -> Callable[[Any], Any]:
    """Return a function that hands an exception of another one, an interrupt too, to a handler, and its result on.

    Where nothing is compiled, an interrupt where the function begins goes past the handler.
    """
    if native.functions is not None:
        return native.functions.guarded(function, handler)  # type: ignore[no-any-return]

    def call(argument: Any) -> Any:
        try:
            return function(argument)
        except BaseException as error:
            return handler(error)

    return call


_Base: Any = PythonBlock if native.functions is None else native.functions.Block


class Block(_Base):  # type: ignore[misc]  # which of the two, is known at run time
    """A context manager that is left whenever it was entered, even in part, whatever interrupts.

    The handler of Ctrl-C may raise wherever a function of Python begins or a call has returned: also at the end of
    ``__enter__``, when ``with`` does not know yet that it is entered, and at the beginning of ``__exit__``.

    Subclasses have ``enter()``, whose result is bound by ``as``, and ``undo()``, which undoes it as far as it has come;
    that is called where ``enter`` raises, until it does not.
    """

    __slots__ = ()

    def leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Any:
        """End, as :meth:`undo` does; true if the exception ends here."""
        self.undo()

    def finish(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Do the rest of :meth:`leave`; called where that raises, until this does not."""
        self.undo()


class Switched(Block):
    """A block in which a setting of the program has another value; it is as it was afterwards, whatever interrupts."""

    __slots__ = ("_before", "_set", "_value")

    def __init__(self, get: Callable[[], Any], set_to: Callable[[Any], object], value: Any) -> None:
        self._before, self._set, self._value = get(), set_to, value

    def enter(self) -> None:
        self._set(self._value)

    def leave(self, *raised: object) -> None:
        self._set(self._before)

    undo = finish = leave
