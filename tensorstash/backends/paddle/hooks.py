"""Pairs of saved-tensor hooks that nest and belong to a thread, over Paddle's one pair per process.

Paddle 3.3 has a single pair, which the operations of every thread go through; a second one is a ``ValueError``. Here
each thread has a stack of scopes, and the one pair that Paddle knows finds the innermost scope of the calling thread.
Operations of a thread that has no scope save their tensors as if there were no hooks.

Operations run without the interpreter lock, and Paddle reads the registration without one of its own: taking it back
while another thread saves a tensor is a crash. So it is done as seldom as can be, after the last scope of all threads
that use scopes.
"""

import atexit
import gc
import threading
from _thread import get_ident
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from sys import getrefcount
from typing import Any

from paddle import Tensor
from paddle.autograd import saved_tensors_hooks
from paddle.base import core

from tensorstash.backends.paddle.packed import Guard, Pack, Scope, Unpack, pair_for_paddle
from tensorstash.backends.paddle.repairs.backward import Unrecorded
from tensorstash.backends.paddle.repairs.patches import Lease, Patch, Patches
from tensorstash.errors import BackendError
from tensorstash.host.blocks import Block

_register: Callable[[Any, Any], None] = core.eager.register_saved_tensors_hooks
_reset: Callable[[], None] = core.eager.reset_saved_tensors_hooks


class HookStack:
    """The scopes of all threads over the one pair that Paddle has. One per process.

    Args:
        patches: makes the other patches that hooks need, given the stack.
    """

    def __init__(self, patches: "Callable[[HookStack], Sequence[Patch]]") -> None:
        self._patches = Patches(patches(self))
        # Leases die, and so take locks, inside garbage collections that begin anywhere.
        self._lock = threading.RLock()
        self._scopes: list[Scope] = []
        self._innermost: dict[int, Scope] = {}
        self._registration: Lease | None = None
        self._pair: tuple[Callable[[Tensor | None], Any], Callable[[Any], Tensor | None]] | None = None
        self._threads: set[threading.Thread] = set()
        self._native: saved_tensors_hooks | None = None
        self.entries = 0
        # Paddle frees a pair registered then after the interpreter is gone, and waits for its lock for ever.
        atexit.register(self._reset_at_exit)

    def current(self) -> Scope | None:
        """Return the innermost scope of this thread."""
        return self._innermost.get(get_ident())

    @property
    def is_registered(self) -> bool:
        """Whether Paddle calls the pair."""
        return self._registration is not None

    def push(
        self, source: object, pack: Pack, unpack: Unpack, *, private: bool = False, suspends: bool = False
    ) -> None:
        """Put a pair in force for this thread.

        Args:
            source: who enters it.
            pack: of the pair.
            unpack: of the pair.
            private: whether a result of ``unpack`` is either the saved tensor's memory or nobody else's.
            suspends: whether no pair is in force while this one is the innermost, not even this.

        Raises:
            BackendError: a pair is in force that was entered earlier, and it cannot be told which.
        """
        with self._lock:
            scope = Scope(source, pack, unpack, self._patches.lease(), private=private)
            scope.ready = not suspends
            if self._registration is None:
                self._pair = pair_for_paddle(self._innermost, lambda: self._registration, self._tidy)
                self._registration = self._patches.lease()  # first: an interrupt may leave it registered
                try:
                    self._native = _registered_over(*self._pair)
                except BackendError:
                    self._registration = None
                    raise
            self._threads.add(threading.current_thread())
            self._scopes.append(scope)
            self._innermost[scope.thread] = scope
            self.entries += 1

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Let tensors saved in the block come back in memory that backward may write into."""
        lease, pair, outer = self._registration, self._pair, self.current()
        if lease is None or pair is None or (outer is not None and not outer.ready):
            yield
            return
        guard = Guard(*pair, self._innermost, lease)
        with guard:
            yield

    def pop(self, source: object, error: BaseException | None) -> None:
        """End the scope that ``source`` entered, and raise the exception of its ``pack``.

        Args:
            source: who entered it.
            error: of its body, which comes first.

        Raises:
            BackendError: it is not the innermost scope of this thread. It is ended all the same, the others stay.
        """
        with self._lock:
            scope = next((scope for scope in reversed(self._scopes) if scope.source is source), None)
            in_order = scope is not None and scope is self.current()
            if scope is not None:
                self._remove(scope)
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
        if scope is not None:
            _report(scope.end(), error)

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
            if self._scopes or self._registration is None or self._threads - {this}:
                return
            _reset()
            if self._native is not None:
                _register(self._native.pack_hook, self._native.unpack_hook)
            self._native = self._registration = None  # last: until then, whoever is interrupted can begin again

    def _reset_at_exit(self) -> None:
        if self.is_registered:
            _reset()


class HookScope(Block):
    """A pair of hooks for this thread and one block of code; nests, the innermost pair runs.

    Args:
        stack: where it is entered.
        pack: runs with gradient recording off, as does ``unpack``.
        unpack: called from whatever thread asks for the tensor.
        private: whether a result of ``unpack`` is either the saved tensor's memory or nobody else's.

    Raises:
        BackendError: left in another order, or on another thread, than entered.
    """

    __slots__ = ("_pack", "_private", "_stack", "_unpack")

    def __init__(self, stack: HookStack, pack: Pack, unpack: Unpack, *, private: bool = False) -> None:
        self._stack = stack
        self._pack = pack
        self._unpack = unpack
        self._private = private

    def enter(self) -> None:
        self._stack.push(self, self._pack, self._unpack, private=self._private)

    def leave(self, kind: Any, error: BaseException | None, trace: Any, /) -> None:
        self._stack.pop(self, error)

    def undo(self, *raised: object) -> None:
        self._stack.drop(self)

    finish = undo


class Suspended(HookScope):
    """No hooks for this thread and one block of code; pairs that are entered inside are in force.

    Args:
        stack: where it is entered.
    """

    __slots__ = ()

    def __init__(self, stack: HookStack) -> None:
        super().__init__(stack, _never_called, _never_called)

    def enter(self) -> None:
        self._stack.push(self, self._pack, self._unpack, suspends=True)


def _never_called(value: Any) -> Any:
    raise AssertionError("hooks were called that are suspended")


def without_recording(hook: Callable[[Any], Any], value: Any) -> Any:
    """Call a hook from Python as C++ does: with gradient recording off."""
    with Unrecorded():
        return hook(value)


def _report(failure: BaseException | None, error: BaseException | None) -> None:
    try:
        if failure is not None and error is None:
            raise failure
        if failure is not None and error is not None and error is not failure:
            error.add_note(f"Before that, a saved tensor could not be packed: {type(failure).__qualname__}: {failure}")
    finally:
        del failure, error  # or the frames of the traceback and the exception hold one another


def _registered_over(pack: Any, unpack: Any) -> saved_tensors_hooks | None:
    """Register the pair, in place of one that was entered before any of ours; return that, if there is one."""
    try:
        _register(pack, unpack)
    except ValueError:  # how Paddle says that a pair is in force
        referrers = gc.get_referrers(saved_tensors_hooks)
        earlier = _taken_back([each for each in referrers if isinstance(each, saved_tensors_hooks)])
        _register(pack, unpack)
        return earlier
    return None


def _taken_back(candidates: Sequence[saved_tensors_hooks]) -> saved_tensors_hooks:
    """Take back the pair that is in force, and return whose it was.

    Paddle does not say which it is, but it is the one whose ``pack_hook`` Paddle alone lets go of then.
    """
    if not candidates:
        raise BackendError(
            "saved-tensor hooks are in force that no paddle.autograd.saved_tensors_hooks has entered, or one that "
            "gc.freeze() has set aside, so that they could not be put back afterwards; take them back first, or enter "
            "the tensorstash scope before them"
        )
    held = [(getrefcount(one.pack_hook), getrefcount(one.unpack_hook)) for one in candidates]
    _reset()
    entered, alone = [], []
    for one, (packs, unpacks) in zip(candidates, held, strict=True):
        if getrefcount(one.pack_hook) < packs:
            entered.append(one)
            if getrefcount(one.unpack_hook) < unpacks:  # which graphs hold, too
                alone.append(one)
    for found in (entered, alone):
        if len({(id(one.pack_hook), id(one.unpack_hook)) for one in found}) == 1:
            return found[0]
    raise BackendError(
        f"paddle.autograd.saved_tensors_hooks were in force that were entered earlier, and it cannot be told which of "
        f"{len(candidates)} live ones they were, to put them back afterwards; they are taken back. Enter the "
        f"tensorstash scope before them, and give each a pack hook of its own"
    )
