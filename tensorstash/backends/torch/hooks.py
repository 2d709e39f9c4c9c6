"""Saved-tensor hooks for one thread and one block of code: a pair of them, or none."""

from _thread import get_ident
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType
from typing import Any, TypeVar

from torch import Tensor
from torch._C._autograd import (
    _pop_saved_tensors_default_hooks,
    _push_saved_tensors_default_hooks,
    _top_saved_tensors_default_hooks,
)
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

from tensorstash.backends.forward import LEFT_OVER, left_out_of_order, raise_or_note
from tensorstash.host.blocks import Block

F = TypeVar("F", bound=Callable[..., Any])

_REFUSAL = "support saved tensor hooks"
_CURE = (
    "tensorstash: the hooks of a stash or a wrap are in force here; call torch.func inside of "
    "`with tensorstash.suspended():`, which takes them off for a block, and a wrapped model after remove() of its wrap"
)


def opaque(function: F) -> F:
    """Return a function that the compiler leaves alone, with all that it calls."""
    # As torch.compiler.disable, without importing the compiler: where a scope is entered inside a compiled
    # function, the graph breaks there, quietly, and neither scope nor hooks are compiled.
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    set_code_exec_strategy(function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
    return function


def _kept_from_compiler(hook: Callable[..., Any]) -> Callable[..., Any]:
    # Functions of tensorstash.host.native remember the functions of Python that they call.
    calls: Any = hook.__self__ if isinstance(hook, BuiltinFunctionType) else (hook,)
    for call in calls:
        function = getattr(call, "__func__", call)
        if isinstance(function, FunctionType):
            opaque(function)
    return hook


def _called(hook: Callable[..., Any]) -> Callable[..., Any]:
    return opaque(lambda value: hook(value))


class HookScope(Block):
    """See :meth:`tensorstash.abilities.Backend.hooks`.

    Hooks run in the state in which PyTorch calls them: gradient recording is on in ``unpack`` during a backward with
    ``create_graph``, and autocast where backward, or a custom ``Function``, runs under it. The methods of the backend
    are indifferent to both; asking for them here would cost half as much as a pair of hooks that do nothing.

    Functions that are ``trusted`` may be marked themselves as never compiled; others get a call in between that is.
    Left in another order, or on another thread, than entered, it leaves the hooks of others as they are.
    """

    __slots__ = ("_is_left", "_pack", "_unpack")

    def __init__(
        self, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor], *, trusted: bool = False
    ) -> None:
        self._is_left = False
        self._pack, self._unpack = map(_kept_from_compiler if trusted else _called, (pack, unpack))

    @opaque
    def enter(self) -> None:
        self._is_left = False
        _push_saved_tensors_default_hooks(self._pack, self._unpack)

    @opaque
    def leave(self, kind: Any, error: BaseException | None, trace: Any, /) -> None:
        if isinstance(error, RuntimeError) and _REFUSAL in str(error) and _CURE not in getattr(error, "__notes__", ()):
            error.add_note(_CURE)
        if self._is_innermost():
            try:
                _pop_saved_tensors_default_hooks()
            finally:
                self._is_left = True
            return
        self._is_left = True
        left_out_of_order(self._remove_from_below(), error)

    @opaque
    def undo(self) -> None:
        if self._is_innermost():
            self.finish(None, None, None)

    @opaque
    def finish(self, *raised: Any) -> None:
        if not self._is_left:
            self.leave(*raised)

    @opaque
    def _is_innermost(self) -> bool:
        top = _top_saved_tensors_default_hooks(True)
        return top is not None and top[0] is self._pack

    def _remove_from_below(self) -> bool:
        above: list[tuple[Callable[..., Any], Callable[..., Any]]] = []
        while (top := _top_saved_tensors_default_hooks(True)) is not None:
            _pop_saved_tensors_default_hooks()
            if top[0] is self._pack:
                break
            above.append(top)
        for pair in reversed(above):
            _push_saved_tensors_default_hooks(*pair)
        return top is not None


class Suspended(Block):
    """See :meth:`tensorstash.abilities.Backend.suspended`; leaving it on another thread changes nothing."""

    __slots__ = ("_taken", "_thread")

    def __init__(self) -> None:
        self._taken: list[tuple[Callable[..., Any], Callable[..., Any]]] = []
        self._thread = 0

    @opaque
    def enter(self) -> None:
        self._thread = get_ident()
        while (top := _top_saved_tensors_default_hooks(True)) is not None:
            self._taken.append(top)
            _pop_saved_tensors_default_hooks()

    @opaque
    def leave(self, kind: Any, error: BaseException | None, trace: Any, /) -> None:
        if self._thread != get_ident():
            return raise_or_note("suspended() was left on another thread than it was entered on", error)
        is_left_over = _top_saved_tensors_default_hooks(True) is not None
        while _top_saved_tensors_default_hooks(True) is not None:
            _pop_saved_tensors_default_hooks()
        self.undo()
        if is_left_over:
            raise_or_note(LEFT_OVER, error)

    @opaque
    def undo(self) -> None:
        top = _top_saved_tensors_default_hooks(True)
        if self._taken and top is not None and top[0] is self._taken[-1][0]:  # where it was interrupted
            self._taken.pop()
        while self._taken:
            _push_saved_tensors_default_hooks(*self._taken[-1])
            self._taken.pop()

    @opaque
    def finish(self, *raised: object) -> None:
        if self._thread == get_ident():
            self.undo()
