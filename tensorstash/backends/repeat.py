"""A call of a module that is computed again in backward, in any framework, and the proof that it can be."""

import random
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from tensorstash.abilities.checkpoints import ALREADY, CHECKPOINTED, Region, Repeats
from tensorstash.backends.forward import is_called_by
from tensorstash.backends.parts import WEIGHTS, NotRepeated, buffers_of, emptied, filled, isolated

_NOT_CALLED = object()


def call_inside(inside: Any, module: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    """Call a module in a context, or so that backward calls it again where that is a :class:`Region`."""
    if isinstance(inside, Region):
        outputs = call_again(inside, module, call, args, kwargs)
        return call(*args, **kwargs) if outputs is _NOT_CALLED else outputs
    with inside:
        return call(*args, **kwargs)


def call_again(
    region: Region, module: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a module so that backward calls it again, if it is proved that it can be.

    Args:
        region: record of the module; gets the result of the proof.
        module: in training.
        call: of the module.
        args: of the call.
        kwargs: of the call.

    Returns:
        The outputs, or :data:`_NOT_CALLED`, where the module is to be called as ever.
    """
    if region.fate != CHECKPOINTED or region.refusal or not module.training:
        return _NOT_CALLED
    backend = region.backend
    framework: Repeats = backend.repeats
    tensors: list[Any] = []
    opaque: list[object] = []
    try:
        arguments = emptied((args, kwargs), framework, tensors, opaque)
        if framework.is_checkpointed() or vars(module).get("gradient_checkpointing"):
            raise NotRepeated(ALREADY)
        if opaque:
            raise NotRepeated(f"takes a {type(opaque[0]).__qualname__}, which a second call may find changed")
        if region.refusal is None:
            region.judged("", *_proof(backend, module, call, tensors, arguments))
    except NotRepeated as reason:
        region.judged(str(reason))
        return _NOT_CALLED
    except Exception:  # the call itself raises it, or makes weights, and draws the numbers that it would have drawn
        return _NOT_CALLED

    parts = [module]
    for part in parts:  # in a loop of its own, since each call asks
        parts += [each for each in getattr(part, framework.inside).values() if each is not None]
    modes = [part.training for part in parts]
    again = partial(call_as_before, iter((False,)), region, call, arguments, parts, modes)
    return framework.repeat(again, module, tensors)


def call_as_before(
    is_again: Iterator[bool],
    region: Region,
    call: Callable[..., Any],
    arguments: Any,
    parts: list[Any],
    modes: list[bool],
    *tensors: Any,
) -> Any:
    """Call a module on other tensors: for the second time in its modes of the first one, and its buffers stay."""
    args, kwargs = filled(arguments, tensors)
    switched = [(part, mode) for part, mode in zip(parts, modes, strict=True) if part.training is not mode]
    if next(is_again, True) and (switched or region.writes):
        with _as_before(region, parts[0], switched):
            return call(*args, **kwargs)
    return call(*args, **kwargs)


@contextmanager
def _as_before(region: Region, module: Any, switched: list[tuple[Any, bool]]) -> Iterator[None]:
    """Switch the modes of modules, and write buffers into copies, so that their versions stay."""
    backend = region.backend
    held = [(space, key, space[key]) for space, key in buffers_of(backend, module)] if region.writes else []
    copies = {id(buffer): backend.repeats.copied(buffer) for _, _, buffer in held}
    try:
        for space, key, buffer in held:
            space[key] = copies[id(buffer)]
        for part, mode in switched:
            part.training = mode
        yield
    finally:
        for space, key, buffer in held:
            space[key] = buffer
        for part, mode in switched:
            part.training = not mode


def _proof(backend: Any, module: Any, call: Callable[..., Any], tensors: list[Any], arguments: Any) -> tuple[bool, int]:
    """Return whether a module writes buffers, and the bytes that it saves.

    It runs twice on copies of its arguments and of its state, from the same random numbers, and both runs have to save
    the same bits.

    Raises:
        NotRepeated: it cannot be called again.
    """
    weights = [weight for _, part in backend.named_modules(module) for weight in part._parameters.values()]
    versions = _versions(backend, weights)
    with isolated(backend, module) as changes:
        own = {_address(backend, space[key]) for space, key in buffers_of(backend, module)}
        saved, nbytes = _run(backend, call, tensors, arguments, own)
        try:
            saved_again, _ = _run(backend, call, tensors, arguments, own)
        except Exception as error:
            raise NotRepeated(f"raises {type(error).__name__} when it is called again") from error
        changed, writes = changes()
    if changed:
        raise NotRepeated(f"keeps a value of its own in {changed[0]}")
    if versions != _versions(backend, weights):
        raise NotRepeated("writes its weights in place")
    if saved != saved_again:
        raise NotRepeated("saves other values when it is called again")
    return writes, nbytes


def _run(
    backend: Any, call: Callable[..., Any], tensors: list[Any], arguments: Any, own: set[int]
) -> tuple[list[Hashable], int]:
    """Call a module on copies of its arguments; ``own`` are the addresses of its buffers, which it may write.

    Returns keys of the saved and returned tensors, and the bytes saved beside weights, buffers and arguments, where
    equal bits count once.
    """
    framework: Repeats = backend.repeats
    copies = [framework.copied(tensor) for tensor in tensors]
    versions = _versions(backend, copies)
    given = {_address(backend, copy) for copy in copies}
    args, kwargs = filled(arguments, copies)
    keys: list[Hashable] = []
    sizes: dict[Hashable, int] = {}
    is_done = False

    def pack(tensor: Any) -> None:
        nonlocal is_done
        is_done |= is_called_by(framework.source)
        keys.append(_key(backend, tensor, own))
        if isinstance(keys[-1], tuple) and _address(backend, tensor) not in given:
            sizes[keys[-1]] = tensor.element_size() * int(tensor.numel())

    with _same_numbers(framework, tensors) as drawn, backend.hooks(pack, _refuse, trusted=True):
        outputs = call(*args, **kwargs)
    left: list[Any] = []
    returned: list[Any] = []
    opaque: list[object] = []
    is_same = emptied((args, kwargs), framework, left, opaque) == arguments and not opaque
    if not is_same or [*map(id, left)] != [*map(id, copies)] or _versions(backend, copies) != versions:
        raise NotRepeated("writes its arguments in place")
    if is_done:
        raise NotRepeated(ALREADY)
    emptied(outputs, framework, returned, opaque)
    if opaque and framework.reenters:
        raise NotRepeated(f"returns a {type(opaque[0]).__qualname__}")
    if drawn:
        raise NotRepeated(f"draws numbers from {drawn[0]}, which is not set back")
    return keys + [_key(backend, tensor, own) for tensor in returned], sum(sizes.values())


def _refuse(packed: None) -> Any:
    raise NotRepeated("computes gradients of its own")


def _versions(backend: Any, tensors: list[Any]) -> list[tuple[str, int]]:
    """Return the versions of tensors, which no call may change; raise for a weight that has yet to be made."""
    return [(backend.describe(tensor), backend.version(tensor)) for tensor in tensors if tensor is not None]


def _key(backend: Any, tensor: Any, own: set[int]) -> Hashable:
    """Return a text for a weight or a buffer, a tuple with the digest of its bits for every other tensor."""
    kind: str = backend.describe(tensor)
    if backend.keep_reason(tensor) in WEIGHTS or _address(backend, tensor) in own:
        return kind
    return kind, backend.repeats.digest(tensor)


def _address(backend: Any, tensor: Any) -> int:
    """Return a key that tells a live tensor from others, also where hooks get it."""
    return id(tensor) if backend.keep_reason(tensor) else int(tensor.data_ptr())


@contextmanager
def _same_numbers(framework: Repeats, tensors: list[Any]) -> Iterator[list[str]]:
    """Set all random numbers back at the end; tell whose were drawn that checkpoints do not set back."""
    drawn: list[str] = []
    pythons, numpys = random.getstate(), np.random.get_state()
    try:
        with framework.same_numbers(tensors):
            yield drawn
    finally:
        if not framework.reenters:
            drawn += ["Python's random"] if random.getstate() != pythons else []
            drawn += ["NumPy's random"] if repr(np.random.get_state()) != repr(numpys) else []
        random.setstate(pythons)
        np.random.set_state(numpys)
