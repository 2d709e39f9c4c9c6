"""The call of one module of PyTorch: inside a scope, or on tensors without memory."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from sys import _getframe
from types import MethodType
from typing import Any, Self

from torch import Tensor, is_grad_enabled
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)
from torch.func import functional_call
from torch.nn import LSTM, Module
from torch.utils._pytree import tree_map

from tensorstash.backends.forward import Replacement, Scope, ScopedMethod
from tensorstash.backends.repeat import call_inside
from tensorstash.backends.torch.eligibility import is_recorded
from tensorstash.backends.torch.hooks import opaque
from tensorstash.errors import BackendError
from tensorstash.protocols import Undo

_CALL, _FIRST = "_call_impl", "_compiled_call_impl"


def scope_calls(module: Module, scope: Scope) -> Undo:
    """Run every call of ``module`` inside ``scope()``, or again in backward, until the returned function is called.

    ``forward`` stays as it is: Accelerate, TRL and others replace it, and drop replacements. Hooks of the
    module are no place either: the end of a scope would not run after an interrupt, nor after any exception where the
    module is compiled; and ``torch.jit.script`` compiles them. ``__call__`` looks its functions up in the instance:

    - ``_compiled_call_impl`` first, which ``module.compile()`` sets. The compiler looks there too, when it
      compiles a caller of the module; its graph breaks there, so that each such module has a graph of its own.
    - ``_call_impl`` otherwise. ``module.compile()`` compiles it, and it is part of copies.
    """
    replacement = Replacement(scope)
    undos = [kind(module, name, replacement).put() for name, kind in ((_FIRST, _ScopedFirst), (_CALL, _ScopedCall))]

    def undo() -> None:
        for each in undos:
            each()

    return undo


def can_imagine(model: Module) -> bool:
    """Whether shapes tell all that a model saves, where its weights are now: oneDNN hides the tensors of its LSTM."""
    cells = [module for module in model.modules() if isinstance(module, LSTM)]
    return not any(weight.device.type == "cpu" for module in cells for weight in module.parameters())


@contextmanager
def imagining(
    model: Module, inputs: tuple[Any, ...], named: Mapping[str, Any]
) -> Iterator[tuple[Callable[[], Any], Callable[[Any], bool]]]:
    """See :meth:`tensorstash.abilities.SupportsImagining.imagining`: the tensors are PyTorch's fake ones."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:

        def fake(value: Any) -> Any:
            return mode.from_tensor(value) if isinstance(value, Tensor) else value

        weights = {name: fake(value) for name, value in model.named_parameters()}
        buffers = {name: fake(value) for name, value in model.named_buffers()}
        storages = {value.untyped_storage()._cdata for value in weights.values()}
        args, kwargs = tree_map(fake, (inputs, dict(named)))

        def call() -> Any:
            try:
                return functional_call(model, {**weights, **buffers}, args, kwargs)
            except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException) as error:
                raise BackendError(
                    f"estimate: {type(model).__qualname__} decides by the elements of tensors ({error}), so that it "
                    f"does not run on shapes alone; run a step under stash('keep') instead, and print its stats()"
                ) from error

        yield call, lambda tensor: tensor.untyped_storage()._cdata in storages


class _OpaqueCall(ScopedMethod):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # nn.DataParallel runs replicas that share their attributes, and this one, with the module they are made of.
        caller = _getframe(1).f_locals.get("self")
        is_replica = isinstance(caller, Module) and vars(caller).get(self._name) is self
        return self.run(caller if is_replica else self._alive(), args, kwargs)

    def run(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the call of a module that was replaced, inside a fresh scope."""
        scope = self.scope
        inside = None if scope is None else _made(scope)
        call = self._replaced(module)
        return call(*args, **kwargs) if inside is None else call_inside(inside, module, call, args, kwargs)

    @property
    def __wrapped__(self) -> Any:
        return self._replaced(self._alive())

    def _replaced(self, module: Any) -> Callable[..., Any]:
        return _call_of(module, self._previous)


@opaque
def _made(scope: Scope) -> Any:
    """Return the scope of a call; None where nothing is saved for a backward that comes."""
    return scope() if is_grad_enabled() and not is_recorded() else None


class _ScopedCall(_OpaqueCall):
    def _copied_to(self, model: object, memo: dict[int, Any]) -> Self:
        twin = super()._copied_to(model, memo)
        # Pickles and copies of a module leave this one out.
        if isinstance(vars(self._alive()).get(_FIRST), _ScopedFirst):
            _ScopedFirst(model, _FIRST, self._replacement).put()
        return twin


class _ScopedFirst(_OpaqueCall):
    def _replaced(self, module: Any) -> Callable[..., Any]:
        if self._previous is not None:
            return _call_of(module, self._previous)
        call = vars(module).get(_CALL)
        while isinstance(call, ScopedMethod):
            call = call._previous
        return _call_of(module, call)


def _call_of(module: Any, previous: Callable[..., Any] | None) -> Callable[..., Any]:
    if isinstance(previous, _OpaqueCall):
        return lambda *args, **kwargs: previous.run(module, args, kwargs)
    return previous if previous is not None else MethodType(getattr(type(module), _CALL), module)


def _break_graph_at(function: Any) -> None:
    # As torch.compiler.disable(recursive=False), without importing the compiler: the scope is not compiled, and
    # calls inside of it are.
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = (
        "the module is wrapped by tensorstash.wrap, whose hooks are no part of a graph; with fullgraph=True, compile "
        "the blocks inside before the wrap, `for block in model.layers: block.compile(fullgraph=True)`, or, but for "
        "checkpoint and with a higher peak, wrap the result of torch.compile"
    )
    set_code_exec_strategy(function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.DEFAULT))


for _each in (_OpaqueCall.__call__, _OpaqueCall.run, call_inside):
    _break_graph_at(_each)
