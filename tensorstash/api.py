"""What users call: ``stash`` for a block or function, ``wrap`` for a model."""

import inspect
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ContextDecorator, ExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from tensorstash.backends import backend_loaded, backend_named, backend_of
from tensorstash.config import walk
from tensorstash.engine.limits import Limits
from tensorstash.engine.session import Session
from tensorstash.engine.stats import Stats
from tensorstash.errors import BackendError, ConfigError
from tensorstash.host.blocks import Block
from tensorstash.policies import CpuOffload
from tensorstash.policies.plan import HookPolicy
from tensorstash.policies.selectors import ModuleNames
from tensorstash.protocols import Backend, Undo
from tensorstash.sizes import parse_bytes

DEFAULT_LIMITS = Limits()

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_MIN_BYTES = "64KiB"
"""Below this size, keeping a tensor costs less than anything that could be done with it."""


class Stash(ContextDecorator, Block):
    """A policy in force for a block of code or for every call of a function.

    Made by :func:`stash`. It can be entered any number of times, nested, and from several threads; the hooks are in
    force for the thread that entered. All entries share one session, its stores and its statistics.
    """

    def __init__(self, session: Session[Any]) -> None:
        self._session = session
        self._entered = _Scopes()

    if TYPE_CHECKING:

        def __enter__(self) -> Session[Any]: ...

    def enter(self) -> Session[Any]:
        """Put the policy in force for this thread."""
        this = self._entered
        this.beginning = scope = self._session.scope()
        session: Session[Any] = scope.__enter__()
        this.scopes, this.beginning = [*this.scopes, scope], None
        return session

    def undo(self) -> None:
        """End an entry that has only begun, and no other."""
        this = self._entered
        if this.beginning is not None:
            this.beginning.undo()
            this.beginning = None

    def leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None:
        """Give the hooks back that were in force before.

        Raises:
            BackendError: left more often than entered, in another order, or on another thread.
        """
        this = self._entered
        if not this.scopes:
            raise BackendError("a stash was left by a thread that has not entered it; enter and leave on one thread")
        try:
            result: bool | None = this.scopes[-1].__exit__(kind, error, trace)
        finally:
            this.scopes, this.is_left = this.scopes[:-1], True
        this.is_left = False
        return result

    def finish(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Give the hooks back, unless that is done."""
        this = self._entered
        if this.scopes and not this.is_left:
            self.leave(kind, error, trace)
        this.is_left = False

    def __call__(self, func: F) -> F:
        if inspect.iscoroutinefunction(func) or inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
            raise ConfigError(
                f"stash: got {func.__qualname__}, a coroutine or generator function, expected a plain function; "
                f"its body runs after the call has returned, so use `with stash(...)` inside it"
            )
        return super().__call__(func)

    def stats(self) -> Stats:
        """Return what has been done in all entries so far."""
        return self._session.stats()


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.scopes: list[Block] = []
        self.beginning: Block | None = None
        self.is_left = False


class Wrapped:
    """A model whose forward runs under a policy, until :meth:`remove`.

    Made by :func:`wrap`. Also a context manager that removes at the end of the block.
    """

    def __init__(self, session: Session[Any], undos: list[Undo]) -> None:
        self._session = session
        self._undos = undos

    def remove(self) -> None:
        """Give the model its own forward back; idempotent. What is stashed stays usable for backward."""
        while self._undos:
            self._undos.pop()()

    def stats(self) -> Stats:
        """Return what has been done so far; also after :meth:`remove`."""
        return self._session.stats()

    def __enter__(self) -> "Wrapped":
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def stash(
    policy: HookPolicy,
    *,
    framework: str | None = None,
    min_bytes: int | str = DEFAULT_MIN_BYTES,
    limits: Limits = DEFAULT_LIMITS,
) -> Stash:
    """Return a context manager and decorator under which saved tensors follow ``policy``.

    Args:
        policy: what becomes of each saved tensor.
        framework: ``"torch"``, ``"paddle"``, ``"reference"`` or a plug-in's; by default the one that is imported.
        min_bytes: tensors below this size are kept; bytes, or text such as ``"1MiB"``.
        limits: byte budgets of what is under way, and the timeout.

    Raises:
        ConfigError: something that is no policy, a bad size, or a policy that selects by module name.
        BackendError: no framework is imported, or several are and ``framework`` does not say which.
        StoreError: a store the policy may use cannot be opened.

    >>> import tensorstash as ts, tensorstash.reference as ref
    >>> x = ref.tensor([[1.0, 2.0]], device="sim:0", requires_grad=True)
    >>> with ts.stash(ts.CpuOffload(), framework="reference", min_bytes=0) as session:
    ...     y = (x.exp() * 2.0).sum()
    >>> y.backward()
    >>> session.stats().stashed.tensors
    1
    """
    _require_policy(policy, "stash")
    if _selects_modules(policy):
        raise ConfigError("stash: the policy selects by module name, which only wrap(model, policy) knows; use wrap")
    backend = backend_named(framework) if framework is not None else backend_loaded()
    return Stash(_session(policy, backend, min_bytes, limits, "stash"))


def wrap(
    model: object,
    policy: HookPolicy,
    *,
    min_bytes: int | str = DEFAULT_MIN_BYTES,
    limits: Limits = DEFAULT_LIMITS,
) -> Wrapped:
    """Run every forward of ``model`` under ``policy`` and return the handle that undoes it.

    The model's class, parameters, buffers and ``state_dict`` are untouched; a copy of a wrapped model is wrapped, a
    pickled one is not. Selectors by module name see the names of ``model.named_modules()``.

    Args:
        model: a ``torch.nn.Module``, ``paddle.nn.Layer`` or module of another registered backend.
        policy: what becomes of each saved tensor.
        min_bytes: tensors below this size are kept; bytes, or text such as ``"1MiB"``.
        limits: byte budgets of what is under way, and the timeout.

    Raises:
        ConfigError: something that is no policy, or a bad size.
        BackendError: a model of no known framework.
        StoreError: a store the policy may use cannot be opened.
    """
    _require_policy(policy, "wrap")
    backend = backend_of(model)
    session = _session(policy, backend, min_bytes, limits, "wrap")
    with ExitStack() as undo_all:
        undos = [backend.wrap_forward(model, session.scope)]
        undo_all.callback(undos[0])
        if _selects_modules(policy):
            for name, module in backend.named_modules(model):
                if name:
                    undos.append(backend.wrap_forward(module, partial(session.module, name)))
                    undo_all.callback(undos[-1])
        undo_all.pop_all()
    return Wrapped(session, undos)


def save_on_cpu(pin_memory: bool = False, device_type: str = "cuda", *, framework: str | None = None) -> Stash:
    """Drop-in for ``torch.autograd.graph.save_on_cpu``, on every framework.

    Unlike PyTorch's, it keeps layouts exactly, stashes shared content once, leaves parameters alone and keeps the
    in-place check.

    Args:
        pin_memory: accepted for compatibility; where host memory is taken from is the engine's choice and changes
            no result.
        device_type: accepted for compatibility; tensors on any accelerator are moved.
        framework: as in :func:`stash`.
    """
    del pin_memory, device_type
    return stash(CpuOffload(), framework=framework, min_bytes=0)


def saved_tensors_hooks(
    pack: Callable[[Any], Any], unpack: Callable[[Any], Any], *, framework: str | None = None
) -> AbstractContextManager[None]:
    """Install a pack/unpack pair of your own, with the same meaning on every framework.

    Pairs are per thread and nest: the innermost runs. On Paddle this is what makes pairs nest at all, puts exact
    layouts back, and frees what ``pack`` returned when backward is done with it.

    Args:
        pack: gets a saved tensor, returns any object; must not keep the tensor itself but a detached one.
        unpack: gets that object, returns a tensor of the same shape, dtype and device.
        framework: as in :func:`stash`.
    """
    backend = backend_named(framework) if framework is not None else backend_loaded()
    return backend.hooks(pack, unpack)


def _session(
    policy: HookPolicy, backend: Backend[Any], min_bytes: int | str, limits: Limits, caller: str
) -> Session[Any]:
    return Session(policy, backend, min_bytes=parse_bytes(min_bytes, path=f"{caller}.min_bytes"), limits=limits)


def _require_policy(policy: object, caller: str) -> None:
    if isinstance(policy, type) or not isinstance(policy, HookPolicy):
        raise ConfigError(
            f"{caller}: got {policy!r}, expected a policy such as CpuOffload() or Compress() | DiskSpill('/scratch')"
        )


def _selects_modules(policy: HookPolicy) -> bool:
    return any(isinstance(part, ModuleNames) for part in walk(policy))
