"""Pairs of saved-tensor hooks that nest and belong to a thread, over Paddle's one pair per process.

Paddle 3.3 has a single pair, which the operations of every thread go through; a second one is a ``ValueError``. Here
each thread has a stack of scopes, and the pair that Paddle knows finds the innermost one of the calling thread.
Operations of a thread that has no scope save their tensors as if there were no hooks.
"""

import gc
import threading
from _thread import get_ident
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from paddle import Tensor
from paddle.autograd import saved_tensors_hooks
from paddle.base import core

from tensorstash.backends.paddle_backward import is_recording, set_recording
from tensorstash.backends.paddle_packed import Absent, NotPacked, Pack, Routed, ScopeState, Unhooked, Unpack, for_paddle
from tensorstash.backends.paddle_patches import Lease, Patch, Patches
from tensorstash.errors import BackendError

_register: Callable[[Any, Any], None] = core.eager.register_saved_tensors_hooks
_reset: Callable[[], None] = core.eager.reset_saved_tensors_hooks


class Scope:
    """One pair of hooks in force for one thread.

    Args:
        source: who entered it and will leave it.
        pack: as the user gave it; so is ``unpack``.
        elsewhere: packs what is not this scope's to pack.
        lease: of the patches that hooks need for as long as anything they packed is alive.
    """

    __slots__ = ("pack", "pack_for_paddle", "source", "state", "thread", "unpack", "unpack_for_paddle")

    def __init__(
        self, source: object, pack: Pack, unpack: Unpack, elsewhere: Callable[[Tensor | None], Any], lease: Lease
    ) -> None:
        self.source = source
        self.pack = pack
        self.unpack = unpack
        self.thread = get_ident()
        self.state = ScopeState(lease)
        # Neither function refers to the scope: Paddle keeps them with the graph, and a cycle would keep them for ever.
        self.pack_for_paddle, self.unpack_for_paddle = for_paddle(pack, unpack, self.state, elsewhere)


class HookStack:
    """The scopes of all threads over the one pair that Paddle has. One per process.

    Args:
        patches: makes what else hooks need, given the stack.
    """

    def __init__(self, patches: "Callable[[HookStack], Sequence[Patch]]") -> None:
        self._patches = Patches(patches(self))
        # Leases die, and so take locks, inside garbage collections that begin anywhere.
        self._lock = threading.RLock()
        self._scopes: dict[int, list[Scope]] = {}
        self._native: saved_tensors_hooks | None = None
        self.entries = 0

    def current(self) -> Scope | None:
        """Return the innermost scope of this thread."""
        scopes = self._scopes.get(get_ident())
        return scopes[-1] if scopes else None

    @property
    def is_empty(self) -> bool:
        """Whether no thread is inside a scope."""
        return not self._scopes

    def push(self, source: object, pack: Pack, unpack: Unpack) -> None:
        """Put a pair in force for this thread."""
        with self._lock:
            if not self._scopes:
                self._native = _take_native()
            scope = Scope(source, pack, unpack, self.pack_elsewhere, self._patches.lease())
            self._scopes.setdefault(scope.thread, []).append(scope)
            self.entries += 1
            _replace(scope)

    def pop(self, source: object, error: BaseException | None) -> None:
        """End the scope that ``source`` entered, and raise what its ``pack`` has raised.

        Args:
            source: who entered it.
            error: what its body has raised, which comes first.

        Raises:
            BackendError: it is not the innermost scope of this thread. It is ended all the same, the others stay.
        """
        with self._lock:
            scope = self.current()
            in_order = scope is not None and scope.source is source
            if in_order or (scope := self._find(source)) is not None:
                self._remove(scope)  # type: ignore[arg-type]
        if scope is not None:
            _report(scope.state.end(), error)
        if not in_order:
            raise BackendError(
                "saved-tensor hooks were left in another order than they were entered; "
                + (
                    "the hooks that were entered later are still in force, these are removed; "
                    if scope is not None
                    else "these were no longer in force: somebody else left twice, or first; "
                )
                + "leave `with` blocks innermost first, on the thread that entered them"
            )

    def pack_elsewhere(self, tensor: Tensor | None) -> Any:
        """Pack a tensor that the registered scope must not see: another thread's, or of an operation inside a hook."""
        if tensor is None:
            return Absent()
        scope = self.current()
        if scope is not None and scope.state.failure is not None:
            return NotPacked(scope.state, scope.state.failure)
        if scope is None or not scope.state.ready:
            return Unhooked(tensor)
        return Routed(scope.unpack_for_paddle, scope.pack_for_paddle(tensor))

    def _find(self, source: object) -> Scope | None:
        everywhere = (scope for scopes in self._scopes.values() for scope in reversed(scopes))
        return next((scope for scope in everywhere if scope.source is source), None)

    def _remove(self, scope: Scope) -> None:
        scopes = self._scopes[scope.thread]
        scopes.remove(scope)
        if not scopes:
            del self._scopes[scope.thread]
        innermost = self.current() or next((others[-1] for others in self._scopes.values()), None)
        if innermost is not None:
            _replace(innermost)
            return
        _reset()
        native, self._native = self._native, None
        if native is not None:
            _register(native.pack_hook, native.unpack_hook)


class HookScope:
    """A pair of hooks for this thread and one block of code; nests, the innermost pair runs.

    Args:
        stack: where it is entered.
        pack: runs with gradient recording off, as does ``unpack``.
        unpack: called from whatever thread asks for the tensor.

    Raises:
        BackendError: left in another order, or on another thread, than entered.
    """

    __slots__ = ("_pack", "_stack", "_unpack")

    def __init__(self, stack: HookStack, pack: Pack, unpack: Unpack) -> None:
        self._stack = stack
        self._pack = pack
        self._unpack = unpack

    def __enter__(self) -> None:
        self._stack.push(self, self._pack, self._unpack)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.pop(self, error)


def without_recording(hook: Callable[[Any], Any], value: Any) -> Any:
    """Call a hook from Python as C++ does: with gradient recording off."""
    recording = is_recording()
    set_recording(False)
    try:
        return hook(value)
    finally:
        set_recording(recording)


def _report(failure: BaseException | None, error: BaseException | None) -> None:
    try:
        if failure is not None and error is None:
            raise failure
        if failure is not None and error is not failure and error is not None:
            error.add_note(f"Before that, a saved tensor could not be packed: {type(failure).__qualname__}: {failure}")
    finally:
        del failure, error  # or the frames of the traceback and the exception hold one another


def _replace(scope: Scope) -> None:
    _reset()
    _register(scope.pack_for_paddle, scope.unpack_for_paddle)


def _take_native() -> saved_tensors_hooks | None:
    """Unregister the pair that was entered before any of ours and return it, if there is one.

    Raises:
        BackendError: there is one, and it cannot be told which.
    """
    try:
        _register(_never, _never)
    except ValueError:  # how Paddle says that a pair is in force
        candidates = [found for found in gc.get_referrers(saved_tensors_hooks) if type(found) is saved_tensors_hooks]
        if len(candidates) != 1:
            raise BackendError(
                f"paddle.autograd.saved_tensors_hooks are in force that were entered earlier, and there are "
                f"{len(candidates)} such objects; expected one, to be put back in force afterwards. "
                f"Enter the tensorstash scope first, or drop the objects that are not in use"
            ) from None
        _reset()
        return candidates[0]
    _reset()
    return None


def _never(value: Any) -> Any:
    raise AssertionError("registered and taken back at once")
