"""A call of a module of PyTorch that is computed again in backward, and the proof that it can be."""

import random
import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from inspect import unwrap
from time import perf_counter
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C import _current_graph_task_id
from torch._C._autograd import _top_saved_tensors_default_hooks
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch.nn import Buffer, Module, Parameter
from torch.utils import checkpoint as theirs
from torch.utils._pytree import tree_flatten, tree_leaves
from xxhash import xxh3_64_intdigest

from tensorstash.abilities.checkpoints import ALREADY, Region
from tensorstash.backends.torch.hooks import HookScope
from tensorstash.backends.torch.recipes.digests import device_digest

_CONSTANTS = (bool, int, float, complex, str, bytes, slice, range, torch.dtype, torch.device, torch.layout)

_FRAMES = 6
"""How far from a hook the function is that saves inputs for a checkpoint."""

_KEPT_HOOKS = ("torch.", "accelerate.")
"""Whose hooks of modules run in a proof: they bring weights. Those of others may count or collect."""


def call_again(
    region: Region, module: Module, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a module so that backward calls it again, if it is proved that it can be, and as ever otherwise.

    Args:
        region: what is known of the module; noted there what its first call proves.
        module: in training.
        call: of the module.
        args: of the call.
        kwargs: of the call.
    """
    if not region.is_wanted or region.refusal or not module.training or _current_graph_task_id() >= 0:
        return call(*args, **kwargs)
    if _is_checkpointed(module):
        region.judged(region.refusal or ALREADY)
        return call(*args, **kwargs)
    tensors: list[Tensor] = []
    opaque: list[object] = []
    build = _taken_apart((args, kwargs), tensors, opaque)
    if opaque:
        region.judged(f"takes a {type(opaque[0]).__qualname__}, which a second call may find changed")
    elif region.refusal is None:
        region.judged(*_proof(module, call, tensors, build))
    if not region.is_repeated:
        return call(*args, **kwargs)

    def again(*tensors: Tensor) -> Any:
        args, kwargs = build(tensors)
        return call(*args, **kwargs)

    around: Any = partial(_leaving_alone, module, region.written) if region.written else theirs.noop_context_fn
    begin = perf_counter()
    outputs = theirs.checkpoint(again, *tensors, use_reentrant=False, context_fn=around)
    region.took(perf_counter() - begin)
    return outputs


def _is_checkpointed(module: Module) -> bool:
    """Whether the model computes the module again by itself: Transformers by a flag, or a function around it."""
    return bool(vars(module).get("gradient_checkpointing")) or is_checkpointed()


def is_checkpointed() -> bool:
    """Return whether a checkpoint is in force on this thread, or computes again."""
    top = _top_saved_tensors_default_hooks(True)
    return _current_graph_task_id() >= 0 or (top is not None and getattr(top[0], "__module__", "") == theirs.__name__)


def _taken_apart(value: Any, tensors: list[Tensor], opaque: list[object]) -> Callable[[Any], Any]:
    """Return what builds a value of its tensors; note these, and what may be changed by whoever gets it."""
    kind = type(value)
    if isinstance(value, Tensor):
        place = next((place for place, tensor in enumerate(tensors) if tensor is value), len(tensors))
        if place == len(tensors):
            tensors.append(value)
        return lambda given: given[place]
    if kind is dict:
        items = [(key, _taken_apart(item, tensors, opaque)) for key, item in value.items()]
        return lambda given: {key: build(given) for key, build in items}
    if kind in (tuple, list):
        parts = [_taken_apart(item, tensors, opaque) for item in value]
        return lambda given: kind(build(given) for build in parts)
    if value is not None and not isinstance(value, _CONSTANTS):
        opaque.append(value)
    return lambda given: value


@contextmanager
def _unwritten(module: Module, names: tuple[str, ...]) -> Iterator[None]:
    """Put the buffers of a module back as they were; backward would refuse what has a new version."""
    held = {name: module.get_buffer(name) for name in names}
    copies = {name: buffer.detach().clone() for name, buffer in held.items()}
    try:
        yield
    finally:
        for name, buffer in held.items():
            buffer.data.copy_(copies[name])


def _leaving_alone(module: Module, names: tuple[str, ...]) -> tuple[AbstractContextManager[None], ...]:
    return nullcontext(), _unwritten(module, names)


def _proof(
    module: Module, call: Callable[..., Any], tensors: list[Tensor], build: Callable[[Any], Any]
) -> tuple[str, tuple[str, ...], int]:
    """Return why a module cannot be called again, empty if it can, the buffers that a call writes, and what it saves.

    It runs twice on copies, from the same random numbers, and both runs have to save the same bits. What it writes into
    itself is put back.
    """
    buffers = {name: buffer for name, buffer in module.named_buffers() if type(buffer) in (Tensor, Buffer)}
    before = {name: _digest(buffer) for name, buffer in buffers.items()}
    own = frozenset(buffer.untyped_storage()._cdata for buffer in buffers.values())
    first, second = _Run(own), _Run(own)
    drawn: list[str] = []
    with _unwritten(module, tuple(buffers)), _quiet(module) as changed:
        for run in (first, second):
            with _same_numbers(tensors) as numbers:
                run.of(call, tensors, build)
            drawn += numbers
        written = tuple(name for name, buffer in buffers.items() if _digest(buffer) != before[name])
    refusal = first.refusal or (f"keeps a value of its own in {changed[0]}" if changed else "")
    refusal = refusal or (f"draws numbers from {drawn[0]}, which is not set back" if drawn else "")
    refusal = refusal or ("saves other values when it is called again" if first.saved != second.saved else "")
    return refusal, written, sum(first.sizes.values())


class _Run:
    """One call of a module on copies of its arguments, and the digests of what it has saved and returned.

    Args:
        own: the storages of the module's buffers, which a call may write.
    """

    def __init__(self, own: frozenset[int]) -> None:
        self._own = own
        self._given: frozenset[int] = frozenset()
        self.sizes: dict[Hashable, int] = {}
        """Bytes of what it has saved beside weights, buffers and arguments; equal bits count once."""
        self.saved: list[Hashable] = []
        self.refusal = ""

    def of(self, call: Callable[..., Any], tensors: list[Tensor], build: Callable[[Any], Any]) -> None:
        """Call it."""
        copies = [tensor.detach().requires_grad_(tensor.requires_grad).clone() for tensor in tensors]
        versions = [copy._version for copy in copies]
        self._given = frozenset(id(copy) for copy in copies)
        args, kwargs = build(copies)
        parts, shape = tree_flatten((args, kwargs))
        try:
            with HookScope(self._pack, _refuse, trusted=True):
                outputs = call(*args, **kwargs)
        except _WantsBack:
            self.refusal = "computes gradients of its own"
            return
        self.saved += [_digest(leaf, self._own) for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
        left, shape_left = tree_flatten((args, kwargs))
        is_same = shape_left == shape and all(one is other for one, other in zip(left, parts, strict=True))
        if not is_same or [copy._version for copy in copies] != versions:
            self.refusal = "writes its arguments in place"

    def _pack(self, tensor: Tensor) -> None:
        frame = sys._getframe(1)
        for _ in range(_FRAMES):
            if frame.f_code.co_filename == theirs.__file__:
                self.refusal = ALREADY
            if frame.f_back is not None:
                frame = frame.f_back
        digest = _digest(tensor, self._own)
        self.saved.append(digest)
        if _own_memory(tensor, self._own) is None and id(tensor) not in self._given:
            self.sizes[digest] = tensor.nbytes


class _WantsBack(Exception):  # noqa: N818  (no error: it ends a run)
    """Raised where a run asks for what it has saved."""


def _refuse(packed: None) -> Tensor:
    raise _WantsBack


@contextmanager
def _quiet(module: Module) -> Iterator[list[str]]:
    """Take the hooks of others off the modules inside, put their attributes back, and tell which were changed."""
    changed: list[str] = []
    spaces = [(name, space) for name, part in module.named_modules() for space in (vars(part), part._buffers)]
    held = [dict(space) for _, space in spaces]
    drawers = [one for space in held for one in space.values() if isinstance(one, torch.Generator)]
    states = [one.get_state() for one in drawers]
    for _, space in spaces:
        for kind in ("_forward_pre_hooks", "_forward_hooks"):
            if foreign := [key for key, hook in space.get(kind, {}).items() if not _brings_weights(hook)]:
                space[kind] = type(space[kind])(item for item in space[kind].items() if item[0] not in foreign)
    try:
        yield changed
    finally:
        for (name, space), before in zip(spaces, held, strict=True):
            space.update({kind: before[kind] for kind in ("_forward_pre_hooks", "_forward_hooks") if kind in before})
            for key in [key for key in space if space[key] is not before.get(key) and _is_value(space[key])]:
                changed.append(f"{name}.{key}".lstrip("."))
                if key in before:
                    space[key] = before[key]
                else:
                    del space[key]
        for drawer, state in zip(drawers, states, strict=True):
            drawer.set_state(state)


def _is_value(value: object) -> bool:
    is_weight = isinstance(value, Tensor) and isinstance(value if value._base is None else value._base, Parameter)
    return isinstance(value, (int, float, complex, Tensor, tuple, list, dict, torch.Generator)) and not is_weight


def _brings_weights(hook: Any) -> bool:
    function = getattr(hook, "func", hook)
    return str(getattr(function, "__module__", "")).startswith(_KEPT_HOOKS)


@contextmanager
def _same_numbers(tensors: list[Tensor]) -> Iterator[list[str]]:
    """Set all random numbers back at the end; tell whose were drawn that checkpoints do not set back."""
    drawn: list[str] = []
    devices = {tensor.device for tensor in tensors if tensor.device.type not in ("cpu", "meta")}
    modules: dict[torch.device, Any] = {device: torch.get_device_module(device) for device in devices}
    states = {one: module.get_rng_state(one) for one, module in modules.items() if hasattr(module, "get_rng_state")}
    state, pythons, numpys = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        yield drawn
    finally:
        if random.getstate() != pythons:
            drawn.append("Python's random")
            random.setstate(pythons)
        if repr(np.random.get_state()) != repr(numpys):
            drawn.append("NumPy's random")
            np.random.set_state(numpys)
        torch.set_rng_state(state)
        for device, of_device in states.items():
            modules[device].set_rng_state(of_device, device)


def _own_memory(tensor: Tensor, own: frozenset[int]) -> int | None:
    """Return which weight or buffer a tensor is or is a view of; None if it is neither."""
    base = tensor if tensor._base is None else tensor._base
    if isinstance(base, Parameter):
        return id(base)
    if tensor.layout != torch.strided or hasattr(tensor, "__tensor_flatten__"):
        return None
    storage = int(tensor.untyped_storage()._cdata)
    return storage if storage in own else None


def _digest(tensor: Tensor, own: frozenset[int] = frozenset()) -> Hashable:
    """Return what is equal for tensors of one kind with the same bits; of a weight or a buffer, which one it is.

    Sharding may take the memory of weights away at any time.

    Args:
        tensor: of any kind.
        own: the storages of buffers.
    """
    kind = type(tensor), tensor.dtype, tensor.shape, tensor.device
    if (memory := _own_memory(tensor, own)) is not None:
        return *kind, memory
    if (flatten := getattr(tensor, "__tensor_flatten__", None)) is not None:
        parts = [getattr(tensor, name) for name in flatten()[0]]
        return *kind, *(_digest(part) for part in parts if isinstance(part, Tensor))
    plain = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    bits = plain.resolve_conj().resolve_neg().reshape(-1).contiguous().view(torch.uint8)
    return *kind, xxh3_64_intdigest(bits.numpy().data) if bits.is_cpu else int(device_digest(bits))


def _keep_from_compiler(code: CodeType) -> None:
    # What is called inside is compiled as ever.
    set_code_exec_strategy(code, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.DEFAULT))
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            _keep_from_compiler(inner)


for _each in [*globals().values(), *vars(_Run).values()]:
    if isinstance(_each, FunctionType) and _each.__module__ == __name__:
        _keep_from_compiler(unwrap(_each).__code__)
