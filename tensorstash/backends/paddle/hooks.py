"""Pairs of saved-tensor hooks that nest and belong to a thread, over Paddle's one pair per process.

Paddle 3.3 has a single pair, which the operations of every thread go through; a second one is a ``ValueError``. Here
each thread has a stack of scopes, and the one pair that Paddle knows finds the innermost scope of the calling thread.
Operations of a thread that has no scope save their tensors as if there were no hooks.

Operations run without the interpreter lock, and Paddle reads the registration without one of its own: taking it back
while another thread saves a tensor is a crash. So it is done as seldom as can be, after the last scope of all threads
that use scopes.
"""

import atexit
import threading
from _thread import get_ident
from collections.abc import Callable
from types import CellType
from typing import Any

from paddle import Tensor
from paddle.autograd import saved_tensors_hooks
from paddle.base import core

from tensorstash.backends.forward import left_out_of_order
from tensorstash.backends.paddle.backward import hook_failed
from tensorstash.backends.paddle.layout import described, dtype_name, fitted, spec_of
from tensorstash.backends.paddle.packed import WRITES, Pack, Scope, Unpack, call, unhooked, unpacked
from tensorstash.errors import BackendError, StashError
from tensorstash.host.blocks import Block, guarded
from tensorstash.spec import TensorSpec

_register: Callable[[Any, Any], None] = core.eager.register_saved_tensors_hooks
_reset: Callable[[], None] = core.eager.reset_saved_tensors_hooks


class HookStack:
    """The scopes of all threads."""

    def __init__(self) -> None:
        # Scopes end inside garbage collections, too, which begin anywhere.
        self._lock = threading.RLock()
        self._scopes: list[Scope] = []
        self._innermost: dict[int, Scope] = {}
        self._threads: set[threading.Thread] = set()
        self._pair = guarded(self._pack, self._not_packed), guarded(unpacked, hook_failed)
        self.is_registered = False
        """Whether Paddle calls the pair."""
        self.entries = 0
        # Paddle frees a pair registered then after the interpreter is gone, and waits for its lock for ever.
        atexit.register(self._reset_at_exit)

    def current(self) -> Scope | None:
        """Return the innermost scope of this thread."""
        return self._innermost.get(get_ident())

    def push(self, source: object, pack: Pack | None, unpack: Unpack | None, *, private: bool = False) -> None:
        """Put a pair of :class:`HookScope` in force for this thread, to be ended by ``source``."""
        with self._lock:
            scope = Scope(source, pack, unpack, private=private)
            if not self.is_registered:
                self.is_registered = True  # first: an interrupt may leave it registered
                try:
                    _register(*self._pair)
                except ValueError:  # how Paddle says that a pair is in force
                    self.is_registered = False
                    raise BackendError(
                        "saved-tensor hooks are in force that were entered before tensorstash was used, so that they "
                        "could not be put back afterwards; leave them first, or enter the tensorstash scope before them"
                    ) from None
            self._threads.add(threading.current_thread())
            self._scopes.append(scope)
            self._innermost[scope.thread] = scope
            self.entries += 1

    def _pack(self, tensor: Tensor) -> CellType:
        """Return what stands for a tensor that an operation of any thread saves.

        An exception of a hook does not go through C++, which would leak the arguments and the graph behind them,
        switch gradient recording off and make an ``OSError`` of it. One of ``pack`` is raised when the scope ends,
        and unpack before that. One of ``unpack`` is raised by backward: it refuses the None that it gets instead.
        """
        scope = self._innermost.get(get_ident())
        if scope is None or not scope.ready:
            if not self._innermost:
                self._tidy()
            if scope is not None and scope.failure is not None:
                return scope.refusal()
            return unhooked(tensor)
        scope.ready = False
        mark: Any = call.settings
        if mark is WRITES:  # the address of a memory that must not come back; 0 where any must not
            mark = tensor.data_ptr() if scope.private and tensor._is_initialized() else 0
        # A cell is the cheapest box that can be emptied; tuples and lists are not opaque to Paddle.
        packed = CellType((scope, scope.pack(tensor), mark))
        scope.ready = True
        return packed

    def _not_packed(self, error: BaseException) -> CellType:
        scope = self.current()
        if scope is None:
            raise error
        scope.failure = error  # and never ready again
        return scope.refusal()

    def pop(self, source: object, error: BaseException | None) -> None:
        """End the scope that ``source`` entered; raise the exception of its ``pack``, unless its body has raised one.

        One that is not the innermost of this thread is ended all the same, which is an error; the others stay.
        """
        with self._lock:
            scope = next((scope for scope in reversed(self._scopes) if scope.source is source), None)
            is_innermost = scope is self.current()
            if scope is not None:
                self._remove(scope)
        if scope is None or not is_innermost:
            return left_out_of_order(scope is not None, error)
        failure = scope.end()
        try:
            if failure is not None and error is None:
                raise failure
            if failure is not None and error is not None and error is not failure:
                kind = type(failure).__qualname__
                error.add_note(f"Before that, a saved tensor could not be packed: {kind}: {failure}")
        finally:
            del failure, error  # or the frames of the traceback and the exception hold one another

    def drop(self, source: object) -> None:
        """End the scope that ``source`` has entered, if it is in force, and the work left by an interrupt."""
        with self._lock:
            for scope in [scope for scope in self._scopes if scope.source is source]:
                self._remove(scope)
                scope.end()
            self._tidy()

    def _remove(self, scope: Scope) -> None:
        of_thread = [other for other in self._scopes if other.thread == scope.thread and other is not scope]
        if of_thread:
            self._innermost[scope.thread] = of_thread[-1]
        else:
            self._innermost.pop(scope.thread, None)
        self._scopes.remove(scope)  # last: until then, whoever is interrupted can begin again
        self._tidy()

    def _tidy(self) -> None:
        """Take the registration back if nobody needs it."""
        with self._lock:
            this = threading.current_thread()
            self._threads = {thread for thread in self._threads if thread is this or thread.is_alive()}
            if self._scopes or not self.is_registered or self._threads - {this}:
                return
            _reset()
            self.is_registered = False  # last: until then, whoever is interrupted can begin again

    def _reset_at_exit(self) -> None:
        if self.is_registered:
            _reset()


STACK = HookStack()
"""The one of the process, as there is one pair, however many backends are made."""


class HookScope(Block):
    """A pair of hooks for this thread and one block of code; nests, the innermost pair runs.

    Args:
        pack: runs with gradient recording and autocast off, as does ``unpack``; without one, no pair is in force but
            those that are entered inside.
        unpack: called from whatever thread asks for the tensor.
        trusted: a result of ``unpack`` is either the saved tensor's memory or nobody else's, and laid out alike; others
            are checked, and copied where Paddle would misread them.

    Raises:
        BackendError: left in another order, or on another thread, than entered.
    """

    __slots__ = ("_pair", "_trusted")

    def __init__(self, pack: Pack | None = None, unpack: Unpack | None = None, *, trusted: bool = False) -> None:
        if pack is not None and unpack is not None:
            pack, unpack = (pack, unpack) if trusted else _checked(pack, unpack)
            pack, unpack = _without_autocast(pack), _without_autocast(unpack)
        self._pair = pack, unpack
        self._trusted = trusted

    def enter(self) -> None:
        STACK.push(self, *self._pair, private=self._trusted)

    def leave(self, kind: Any, error: BaseException | None, trace: Any, /) -> None:
        STACK.pop(self, error)

    def undo(self, *raised: object) -> None:
        STACK.drop(self)

    finish = undo


def _checked(pack: Pack, unpack: Unpack) -> tuple[Pack, Unpack]:
    """Return a pair that does the same for Paddle, which takes only the allocation of a result and checks nothing."""

    def checked_pack(tensor: Tensor) -> tuple[TensorSpec | None, Any] | Tensor:
        has_memory = tensor._is_initialized()
        if not has_memory and 0 not in tensor.shape:
            return tensor.detach()  # elements without memory, with which a pair could do nothing
        can_be_fitted = not tensor.is_dist() and has_memory and dtype_name(tensor.dtype)
        return spec_of(tensor) if can_be_fitted else None, pack(tensor)

    def checked_unpack(packed: tuple[TensorSpec | None, Any] | Tensor) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        spec, value = packed
        tensor = unpack(value)
        if spec is None:
            return tensor
        got = described(tensor) if isinstance(tensor, Tensor) else f"a {type(tensor).__qualname__}"
        if got != str(spec):
            raise StashError(
                f"unpack returned {got}, expected {spec}; return the packed tensor, on the place it came from"
            )
        return fitted(tensor, spec)

    return checked_pack, checked_unpack


def repair() -> None:
    """Route ``paddle.autograd.saved_tensors_hooks``, and ``recompute``, which builds on it, through :data:`STACK`."""
    pairs: Any = saved_tensors_hooks

    def __enter__(hooks: Any) -> None:  # noqa: N807
        pair = hooks.pack_hook, hooks.unpack_hook
        # Recompute's own pair returns the right allocation, under a shape of its own.
        is_own = str(getattr(pair[0], "__module__", "")).startswith("paddle.distributed.fleet.recompute.")
        STACK.push(hooks, *(pair if is_own else _checked(*pair)))

    def __exit__(hooks: Any, kind: Any, error: Any, trace: Any) -> None:  # noqa: N807
        STACK.pop(hooks, error)

    pairs.__enter__, pairs.__exit__ = __enter__, __exit__


def _without_autocast(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a hook that switches autocast off and back; the hook itself in a build without a device that casts."""
    if not (core.is_compiled_with_cuda() or core.is_compiled_with_xpu() or core.get_all_custom_device_type()):
        return hook

    def run(value: Any) -> Any:
        amp: Any = core._get_amp_attrs()  # type: ignore[attr-defined]
        level, amp._amp_level = amp._amp_level, core.AmpLevel.O0
        try:
            return hook(value)
        finally:
            amp._amp_level = level

    return run
