"""Methods of one model that run inside a scope, which can be undone and copied; and who calls whom."""

import copy
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import getattr_static
from operator import itemgetter
from types import FrameType
from typing import Any, Self
from weakref import ref

from tensorstash.errors import BackendError, ConfigError
from tensorstash.protocols import Undo

LEFT_OVER = "saved-tensor hooks that were entered inside of suspended() are still in force at its end, and taken off"

Scope = Callable[[], Any]
"""Makes a context manager for a call; some adapters take other things."""


def replace_method(model: object, scope: Scope, name: str = "forward") -> Undo:
    """Run every call of a method of ``model`` inside ``scope()`` until the returned function is called.

    Replacements nest, and each can be undone on its own, in any order. A deep copy of the model runs the copy's own
    weights inside the same scope, until the undo; a pickle of it holds the method that was replaced. A shallow copy
    shares the attribute and would run the method of the original.
    """
    if not hasattr(model, "__dict__") or not callable(getattr(model, name, None)):
        raise ConfigError(f"got a {type(model).__qualname__}, expected a model with attributes and a {name} method")
    return ScopedMethod(model, name, Replacement(scope)).put()


@dataclass
class Replacement:
    """The scope that a model and its copies share, or None once it is undone."""

    scope: Scope | None


class ScopedMethod:
    """A method of one model, referenced weakly, inside a scope; stands in the model's ``__dict__``.

    It has attributes of its own and can be referenced weakly, as functions of frameworks must.
    """

    def __init__(self, model: object, name: str, replacement: Replacement) -> None:
        self._model = ref(model)
        self._name = name
        self._replacement = replacement
        self._is_out = False
        # The instance's own before, or None where the class's was in force.
        self._previous: Callable[..., Any] | None = vars(model).get(name)

    @property
    def scope(self) -> Scope | None:
        """The scope of the calls, or None if they no longer have one."""
        return None if self._is_out else self._replacement.scope

    def put(self) -> Undo:
        """Put it into the model, and return the function that takes it out."""
        vars(self._alive())[self._name] = self
        return self.undo

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the method that was replaced, inside a fresh scope."""
        scope = self.scope
        if scope is None:
            return self.__wrapped__(*args, **kwargs)
        with scope():
            return self.__wrapped__(*args, **kwargs)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        # Inspection follows this name to the signature. A stored bound method would be a cycle through the model.
        if self._previous is not None:
            return self._previous
        kind = type(model := self._alive())
        found = getattr_static(kind, self._name)
        bound: Callable[..., Any] = found.__get__(model, kind) if hasattr(found, "__get__") else found
        return bound

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        model = self._alive()
        copied = memo.get(id(model))
        return vars(copy.deepcopy(model, memo))[self._name] if copied is None else self._copied_to(copied, memo)

    def _copied_to(self, model: object, memo: dict[int, Any]) -> Self:
        twin = type(self)(model, self._name, self._replacement)
        twin._previous = copy.deepcopy(self._previous, memo)
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        # Like a bound method, and in names of the standard library alone: the pickle loads without this package.
        if self._previous is None:
            return getattr, (self._alive(), self._name)
        return itemgetter(0), ((self._previous,),)

    def undo(self) -> None:
        """Take it out of the model, and step aside in all copies of the model."""
        self._replacement.scope = None
        self.take_out()

    def take_out(self) -> None:
        """Give this model its previous method back; where something else has replaced this one, only step aside."""
        self._is_out = True
        model = self._model()
        if model is None or vars(model).get(self._name) is not self:
            return
        previous = self._previous
        while isinstance(previous, ScopedMethod) and previous.scope is None:
            previous = previous._previous
        if previous is None:
            del vars(model)[self._name]
        else:
            vars(model)[self._name] = previous

    def _alive(self) -> object:
        model = self._model()
        if model is None:
            raise BackendError(f"the wrapped model whose {self._name} is used is gone; keep the model alive")
        return model


def scoped_methods(model: object) -> Iterator[ScopedMethod]:
    """Yield the methods of a model that run inside a scope, the latest first."""
    for method in list(getattr(model, "__dict__", {}).values()):
        while isinstance(method, ScopedMethod):
            yield method
            method = method._previous


def is_called_by(module: str, owner: str = "") -> bool:
    """Return whether a function of a module runs on this thread: any, or one with this name or made by that ``owner``.

    >>> is_called_by("doctest", "DocTestRunner"), is_called_by("doctest", "DocTestParser"), is_called_by("doctest")
    (True, False, True)
    """
    frame: FrameType | None = sys._getframe()
    prefix = owner and f"{owner}."
    while frame is not None:
        if frame.f_globals.get("__name__") == module and f"{frame.f_code.co_qualname}.".startswith(prefix):
            return True
        frame = frame.f_back
    return False


def left_out_of_order(is_removed: bool, error: BaseException | None) -> None:
    """Raise that hooks are left that are not the innermost, removed or gone before; or note it on an ``error``."""
    gone = "these were no longer in force on this thread: somebody else left twice, or first"
    state = "the hooks that were entered later are still in force, these are removed" if is_removed else gone
    raise_or_note(f"saved-tensor hooks were left in another order than they were entered; {state}", error)


def raise_or_note(text: str, error: BaseException | None) -> None:
    """Raise that hooks were left wrongly; or note it on an ``error``, as Ctrl-C may have stopped others half-way."""
    if error is None:
        raise BackendError(f"{text}; leave `with` blocks innermost first, on the thread that entered them")
    error.add_note(text)
