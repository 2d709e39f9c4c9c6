"""Replacing the forward of one model, in any framework, so that the replacement can be undone and copied."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from operator import itemgetter
from typing import Any
from weakref import ref

from tensorstash.errors import BackendError, ConfigError
from tensorstash.protocols import Undo

Scope = Callable[[], AbstractContextManager[Any]]


def replace_forward(model: object, scope: Scope) -> Undo:
    """Run every forward of ``model`` inside ``scope()`` until the returned function is called.

    Only ``vars(model)["forward"]`` changes: class, parameters and ``state_dict`` do not, and neither does the
    signature of ``model.forward``. Replacements nest, and each can be undone on its own, in any order, any number of
    times. A deep copy of the model runs the copy's own weights inside the same scope, until the undo; a pickle of it
    holds the forward that was replaced. The model is referenced weakly, so that it dies by reference counting.

    A shallow copy of the model (as ``torch.nn.DataParallel`` makes for its replicas) shares the attribute and would
    run the forward of the original.

    Args:
        model: an object with a ``forward`` method and a ``__dict__``.
        scope: makes a fresh context manager for each call; called from any thread.

    Raises:
        ConfigError: the model has no forward that could be replaced.

    >>> from contextlib import nullcontext
    >>> class Twice:
    ...     def forward(self, x):
    ...         return 2 * x
    >>> model = Twice()
    >>> undo = replace_forward(model, lambda: nullcontext(print("inside")))
    >>> model.forward(4)
    inside
    8
    >>> undo()
    >>> model.forward(4)
    8
    """
    if not hasattr(model, "__dict__") or not callable(getattr(model, "forward", None)):
        raise ConfigError(
            f"got a {type(model).__qualname__}, expected a model: an object with attributes and a forward method"
        )
    attributes = vars(model)
    forward = ScopedForward(model, attributes.get("forward"), _Replacement(scope))
    attributes["forward"] = forward
    return forward.undo


class _Replacement:
    """What a model and its copies share: the scope, or None once it is undone."""

    __slots__ = ("scope",)

    def __init__(self, scope: Scope) -> None:
        self.scope: Scope | None = scope


class ScopedForward:
    """The forward of one model inside a scope; stands in the model's ``__dict__``.

    Args:
        model: referenced weakly.
        previous: the instance's own ``forward`` before, or None where the class's was in force.
        replacement: shared among copies.
    """

    __slots__ = ("_model", "_previous", "_replacement")

    def __init__(self, model: object, previous: Callable[..., Any] | None, replacement: _Replacement) -> None:
        self._model = ref(model)
        self._previous = previous
        self._replacement = replacement

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward that was replaced, inside a fresh scope."""
        scope = self._replacement.scope
        if scope is None:
            return self.__wrapped__(*args, **kwargs)
        with scope():
            return self.__wrapped__(*args, **kwargs)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        # Inspection follows this name to the signature. A stored bound method would be a cycle through the model.
        if self._previous is not None:
            return self._previous
        model = self._alive()
        kind = type(model)
        found = next(vars(cls)["forward"] for cls in kind.__mro__ if "forward" in vars(cls))
        bound: Callable[..., Any] = found.__get__(model, kind) if hasattr(found, "__get__") else found
        return bound

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        model = self._alive()
        copied = memo.get(id(model))
        if copied is None:
            return vars(copy.deepcopy(model, memo))["forward"]
        return ScopedForward(copied, copy.deepcopy(self._previous, memo), self._replacement)

    def __reduce__(self) -> tuple[Any, ...]:
        # Like a bound method, and in names of the standard library alone: the pickle loads without this package.
        if self._previous is None:
            return getattr, (self._alive(), "forward")
        return itemgetter(0), ((self._previous,),)

    def undo(self) -> None:
        """Give the model its previous forward back; where something else has replaced this one, only step aside."""
        self._replacement.scope = None
        model = self._model()
        if model is None or vars(model).get("forward") is not self:
            return
        previous = self._previous
        while isinstance(previous, ScopedForward) and previous._replacement.scope is None:
            previous = previous._previous
        if previous is None:
            del vars(model)["forward"]
        else:
            vars(model)["forward"] = previous

    def _alive(self) -> object:
        model = self._model()
        if model is None:
            raise BackendError("the forward of a wrapped model was used after the model was gone; keep the model alive")
        return model
