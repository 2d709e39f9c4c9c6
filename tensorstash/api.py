"""The entry points: ``stash`` for a block or function, ``wrap`` for a model."""

import inspect
import os
import sys
import threading
from collections.abc import Callable, Hashable
from contextlib import ContextDecorator, ExitStack
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tensorstash.abilities import Backend, Region, SupportsCheckpoints
from tensorstash.backends import backend_chosen, backend_of
from tensorstash.backends.forward import replace_method, scoped_methods
from tensorstash.config import walk
from tensorstash.config.files import judge_variable
from tensorstash.config.reading import policy_of
from tensorstash.engine.session import Session
from tensorstash.engine.stats import Stats
from tensorstash.errors import BackendError, ConfigError, say
from tensorstash.host.blocks import Block
from tensorstash.policies.checkpoint import Checkpoint, checkpoint_of, is_on_accelerator, repeated
from tensorstash.policies.limits import Limits, explains_arguments, limits_of
from tensorstash.policies.plan import HookPolicy
from tensorstash.policies.policy import Policy
from tensorstash.policies.route import automatic
from tensorstash.policies.selectors import ModuleNames, named_for
from tensorstash.protocols import Undo
from tensorstash.registry import did_you_mean
from tensorstash.sizes import budget_of, parse_bytes

DEFAULT_LIMITS = Limits()

NEVER_ENTERED = (
    "a stash was made and never entered, so that it had no effect: run the forward pass inside "
    "`with tensorstash.stash(policy):`, or decorate a function with it"
)
NEVER_CALLED = (
    "nothing was seen: a wrapped model was never called while gradients were recorded. Wrap the object that training "
    "calls, and name a method other than forward: methods=('forward', 'training_step')"
)

F = TypeVar("F", bound=Callable[..., Any])

MIN_BYTES = "64KiB"
"""Below this size, keeping a tensor costs less than anything that could be done with it."""

MIN_AWAY_BYTES = MappingProxyType({"disk": 256 * 2**10, "device": 2**20})
"""Below this size, a turn of the thread that writes, or the launch of a copy, costs more than the memory is worth."""


class Stash(ContextDecorator, Block):
    """A policy in force for a block of code or for every call of a function; made by :func:`stash`.

    It can be entered any number of times, nested, and from several threads; the hooks are in force for the thread that
    entered. All entries share stores, budgets and statistics.

    >>> import tensorstash as ts, tensorstash.reference as ref
    >>> with ts.stash("compress", framework="reference", min_bytes=0) as session:
    ...     loss = ref.ones((64,), requires_grad=True).exp().sum()
    >>> session.drain()
    """

    def __init__(self, session: Session[Any]) -> None:
        self._session = session
        self._entered = _Scopes()
        session.adviser.expect_entry(session, NEVER_ENTERED)

    if TYPE_CHECKING:

        def __enter__(self) -> Self: ...

    def enter(self) -> Self:
        """Put the policy in force for this thread."""
        this = self._entered
        this.beginning = scope = self._session.scope()
        scope.__enter__()
        this.scopes, this.beginning = [*this.scopes, scope], None
        return self

    def undo(self) -> None:
        """End an entry that has only begun, and no other."""
        this = self._entered
        if this.beginning is not None:
            this.beginning.undo()
            this.beginning = None

    def leave(self, *error: Any) -> bool | None:
        """Give the hooks back that were in force before.

        Raises:
            BackendError: left more often than entered, in another order, or on another thread.
        """
        this = self._entered
        if not this.scopes:
            raise BackendError("a stash was left by a thread that has not entered it; enter and leave on one thread")
        try:
            result: bool | None = this.scopes[-1].__exit__(*error)
        finally:
            this.scopes, this.is_left = this.scopes[:-1], True
        this.is_left = False
        return result

    def finish(self, *error: Any) -> None:
        """Give the hooks back, unless that is done."""
        this = self._entered
        if this.scopes and not this.is_left:
            self.leave(*error)
        this.is_left = False

    def __call__(self, func: F) -> F:
        self._session.adviser.expect_no_entry()  # whether the function is ever called is not our business
        if inspect.iscoroutinefunction(func) or inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
            cure = "its body runs after the call has returned, so use `with stash(...)` inside it"
            got = f"{func.__qualname__}, a coroutine or generator function"
            raise ConfigError(f"stash: got {got}, expected a plain function; {cure}")
        return super().__call__(func)

    def stats(self) -> Stats:
        """Return the statistics of all entries so far."""
        return self._session.stats()

    def drain(self) -> None:
        """Wait until the bytes of everything saved so far are captured, which makes them immune to later changes.

        For the thread that has saved them, outside of any in-place operation.

        Raises:
            StoreError: they were not within ``Limits(timeout_s)``; their tensors stay where they are.
        """
        self._session.drain()

    def __repr__(self) -> str:
        return f"<stash under {self._session.policy!r}>"


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.scopes: list[Block] = []
        self.beginning: Block | None = None
        self.is_left = False


class Wrapped:
    """A model whose calls run under a policy, until :meth:`remove`; made by :func:`wrap`, found by :func:`wrapped`.

    As a context manager it removes at the end of the block.

    >>> import tensorstash as ts, tensorstash.reference as ref
    >>> model = ref.nn.GELU()
    >>> with ts.wrap(model, "compress", min_bytes=0):
    ...     model(ref.ones((999,), requires_grad=True)).sum().backward()
    """

    def __init__(self, session: Session[Any], undos: list[Undo]) -> None:
        self._session = session
        self._undos = undos

    def remove(self) -> None:
        """Give the model its own forward back; idempotent. Stashed tensors stay usable for backward."""
        while self._undos:
            self._undos.pop()()

    def stats(self) -> Stats:
        """Return the statistics so far; also after :meth:`remove`."""
        return self._session.stats()

    def __repr__(self) -> str:
        return f"<{'wrapped' if self._undos else 'no longer wrapped'} under {self._session.policy!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


@explains_arguments
def stash(
    policy: HookPolicy | str = "auto",
    *,
    budget: int | str | None = None,
    framework: str | None = None,
    min_bytes: int | str | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Stash:
    """Return a context manager and decorator under which saved tensors follow ``policy``.

    Args:
        policy: how saved tensors leave; also one line of text, as of :func:`~tensorstash.parse`. By default ``"auto"``,
            ``recompute | cpu_offload`` on an accelerator and ``recompute | disk_spill`` on a CPU.
        budget: bytes of saved tensors that may stay where they are, such as ``"6GiB"``; ``"auto"`` for the memory that
            is free when the first tensor is saved; None if all leave that can. The excess over the bytes that the last
            equal step saved leaves: recipes before stores, the oldest first.
        framework: ``"torch"``, ``"paddle"``, ``"reference"`` or a plug-in's; by default the one that is imported.
        min_bytes: tensors below this size are kept; bytes, or text such as ``"1MiB"``. By default 64 KiB, 256 KiB for
            a disk, and 1 MiB for copies from an accelerator.
        limits: bytes in flight, and the timeout.

    Raises:
        ConfigError: something that is no policy, a bad size, or a policy that selects by module name.
        BackendError: no framework is imported, or several are and ``framework`` does not say which.
        StoreError: a store the policy may use cannot be opened.

    >>> import tensorstash as ts, tensorstash.reference as ref
    >>> x = ref.tensor([[1.0, 2.0]], device="sim:0", requires_grad=True)
    >>> with ts.stash("cpu_offload", framework="reference", min_bytes=0):
    ...     y = (x.exp() * 2.0).sum()
    >>> y.backward()
    """
    policy = policy_of(policy, "stash")
    if _module_patterns(policy):
        raise ConfigError("stash: the policy selects by module name, which only wrap(model, policy) knows; use wrap")
    if checkpoint_of(policy):
        raise ConfigError("stash: got Checkpoint, which is about the blocks of a model; use ts.wrap(model, policy)")
    return Stash(_session(policy, backend_chosen(framework), budget, min_bytes, limits, "stash"))


@explains_arguments
def wrap(
    model: object,
    policy: HookPolicy | str = "auto",
    *,
    budget: int | str | None = None,
    methods: str | tuple[str, ...] | None = None,
    min_bytes: int | str | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Wrapped:
    """Run every call of ``model`` under ``policy`` and return the handle that undoes it.

    The model's class, parameters, buffers and ``state_dict`` are untouched. A copy of a wrapped model is wrapped, a
    pickled one is not, and it stays wrapped when the handle is dropped. Trainers and compilers may replace its
    ``forward``. Selectors by module name see ``named_modules()``, without the prefixes of compilers and adapters.

    Args:
        model: a ``torch.nn.Module``, ``paddle.nn.Layer`` or module of another registered backend.
        policy: as for :func:`stash`; ``"auto"`` begins with ``checkpoint`` where the model has blocks and is on an
            accelerator, or has a budget.
        budget: as for :func:`stash`; of ``checkpoint``, the oldest blocks are computed again as far as stores are slow.
        methods: names of methods that run under the policy: ``"forward"`` for a call of the model, any other for
            itself; by default ``"forward"``, and Lightning's ``"training_step"`` where the model has one.
        min_bytes: as for :func:`stash`.
        limits: bytes in flight, and the timeout.

    Raises:
        ConfigError: no policy, a bad size, a method that the model lacks, or a pattern that matches no module.
        BackendError: a model of no known framework.
        StoreError: a store the policy may use cannot be opened.

    >>> import tensorstash as ts, tensorstash.reference as ref
    >>> model = ref.nn.GELU()
    >>> handle = ts.wrap(model, "compress", min_bytes=0)
    >>> model(ref.ones((999,), requires_grad=True)).sum().backward()
    >>> handle.remove()
    """
    if isinstance(model, str | Policy):
        raise ConfigError(f"wrap: got {model!r} as the model; the arguments are swapped: write wrap(model, policy)")
    policy = policy_of(policy, "wrap")
    if isinstance(model, type):
        raise ConfigError(f"wrap: got the class {model.__qualname__}, expected a model; make an instance of it")
    backend = backend_of(model)
    if methods is None:
        methods = ("forward", "training_step") if callable(getattr(model, "training_step", None)) else "forward"
    names = (methods,) if isinstance(methods, str) else methods
    for method in names:
        if not callable(getattr(model, method, None)):
            near = {each for each in dir(type(model)) if each.endswith(("forward", "_step"))}
            raise ConfigError(f"wrap.methods: the model has no method {method!r}; {did_you_mean(method, near)}")
    modules = dict(backend.named_modules(model))
    patterns = _module_patterns(policy)
    named = named_for(patterns, modules) if patterns else {}
    may_repeat = policy == automatic() and (budget is not None or is_on_accelerator(modules.values()))
    if may_repeat and isinstance(backend, SupportsCheckpoints) and repeated(modules):
        policy = Checkpoint() | policy
    checkpoint = checkpoint_of(policy)
    blocks = checkpoint.chosen(modules) if checkpoint else {}
    if blocks and not isinstance(backend, SupportsCheckpoints):
        why = f"{backend.name}, which has no function that computes modules again. Leave Checkpoint out of the policy"
        raise ConfigError(f"wrap: Checkpoint is not there for {why}")
    if any(_session_of(method.scope) for method in scoped_methods(model)):
        say("the model is wrapped already, and that policy takes the place of this one; unwrap(model) first")
    session = _session(policy, backend, budget, min_bytes, limits, "wrap")
    scopes: list[tuple[object, Any, str]] = [(model, session.scope, method) for method in names]
    scopes += [(modules[place], partial(session.module, name), "forward") for place, name in named.items()]
    refused: dict[Hashable, str] = {}
    for place, name in blocks.items():
        session.regions[name] = Region(name, backend, refused)
        scopes.append((modules[place], partial(session.region, name), "forward"))
    undos: list[Undo] = [session.adviser.removed]  # at last; a copy that is unwrapped says nothing of the model
    with ExitStack() as undo_all:
        for module, scope, method in scopes:
            is_forward = method == "forward"
            undo = backend.wrap_forward(module, scope) if is_forward else replace_method(module, scope, method)
            undos.append(undo)
            undo_all.callback(undo)
        undo_all.pop_all()
    session.adviser.expect_entry(session, NEVER_CALLED)
    return Wrapped(session, undos)


def wrapped(model: object) -> tuple[Wrapped, ...]:
    """Return a handle for each wrap that is in force on a model or on modules inside of it, innermost first.

    Args:
        model: as for :func:`wrap`, or a trainer's module around it, such as ``DistributedDataParallel(model)``.

    Raises:
        BackendError: a model of no known framework.

    >>> import tensorstash as ts, tensorstash.reference as ref
    >>> ts.wrapped(ref.nn.GELU())
    ()
    """
    undos: dict[Session[Any], list[Undo]] = {}
    for _, module in backend_of(model).named_modules(model):
        for method in reversed(list(scoped_methods(module))):
            if session := _session_of(method.scope):
                undos.setdefault(session, []).append(method.take_out)
    return tuple(Wrapped(session, taking_out) for session, taking_out in undos.items())


def unwrap(model: object) -> None:
    """Undo every wrap of a model and of the modules inside of it, and none of its copies; idempotent.

    Args:
        model: as for :func:`wrapped`, with its error.

    >>> import tensorstash as ts, tensorstash.reference as ref
    >>> ts.unwrap(ref.nn.GELU())
    """
    for handle in wrapped(model):
        handle.remove()


def _session(
    policy: HookPolicy,
    backend: Backend[Any],
    budget: int | str | None,
    min_bytes: int | str | None,
    limits: Limits,
    caller: str,
) -> Session[Any]:
    return Session(
        policy,
        backend,
        min_bytes=parse_bytes(MIN_BYTES if min_bytes is None else min_bytes, path=f"{caller}.min_bytes"),
        min_away_bytes=MIN_AWAY_BYTES if min_bytes is None else {},
        budget=budget_of(budget, f"{caller}.budget"),
        limits=limits_of(limits, caller),
    )


def _module_patterns(policy: HookPolicy) -> list[str]:
    return [text for part in walk(policy) if isinstance(part, ModuleNames) for text in part.patterns]


def _session_of(scope: Any) -> Session[Any] | None:
    function = scope.func if isinstance(scope, partial) else scope
    owner = getattr(function, "__self__", None)
    return owner if isinstance(owner, Session) else None


# Also in programs that make no stash.
judge_variable(os.environ, sys.orig_argv)
