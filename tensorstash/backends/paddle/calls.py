"""The call of one layer of Paddle inside a scope."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from types import MethodType
from typing import Any, Self

from paddle import in_dynamic_mode, is_grad_enabled
from paddle.nn import Layer

from tensorstash.backends.forward import Replacement, Scope, ScopedMethod
from tensorstash.backends.repeat import call_inside
from tensorstash.protocols import Undo

_CALL = "_dygraph_call_func"

# Of the standard library, so that a pickle of the layer loads without this package.
_nothing: Any = nullcontext().__exit__


def scope_calls(layer: Layer, scope: Scope) -> Undo:
    """Run every call of ``layer`` inside ``scope()``, or again in backward, until the returned function is called.

    ``forward`` stays as it is: ``paddle.jit`` converts its source, and the trainers replace it. The layer's own
    hooks alone are no place either: the end of a scope would not run after an interrupt, nor, before Paddle 3.1, after
    any exception. A layer that has hooks is called by way of ``_dygraph_call_func``, which is looked up in the
    instance; so it gets a hook that does nothing, and that method runs inside the scope.
    """
    hook = layer.register_forward_pre_hook(_nothing)
    return _ScopedCall(layer, _CALL, Replacement(scope), hook._hook_id).put()


class _ScopedCall(ScopedMethod):
    def __init__(self, layer: object, name: str, replacement: Replacement, hook: int) -> None:
        super().__init__(layer, name, replacement)
        self._hook = hook

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_grad_enabled() and in_dynamic_mode() and (scope := self.scope) is not None:
            return call_inside(scope(), self._alive(), self.__wrapped__, args, kwargs)
        return self.__wrapped__(*args, **kwargs)  # nothing is saved, also where a program is being made

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self._previous or MethodType(getattr(type(layer := self._alive()), _CALL), layer)

    def _copied_to(self, model: object, memo: dict[int, Any]) -> Self:
        # A copy has the hook under this number.
        twin = type(self)(model, self._name, self._replacement, self._hook)
        twin._previous = copy.deepcopy(self._previous, memo)
        return twin

    def take_out(self) -> None:
        super().take_out()
        layer = self._model()
        if isinstance(layer, Layer):
            layer._forward_pre_hooks.pop(self._hook, None)
