"""A call of a module that is computed again in backward, in any framework, and the proof that it can be."""

import random
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tensorstash.abilities.checkpoints import ALREADY, CHECKPOINTED, Region, Repeats
from tensorstash.backends.forward import is_called_by
from tensorstash.backends.parts import WEIGHTS, NoCopy, apart, as_before, buffers_of, is_argument, isolated, taken_apart


def call_again(
    region: Region, module: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a module so that backward calls it again, if it is proved that it can be, and as ever otherwise.

    Args:
        region: record of the module; gets the result of the proof.
        module: in training.
        call: of the module.
        args: of the call.
        kwargs: of the call.
    """
    if region.fate != CHECKPOINTED or region.refusal or not module.training:
        return call(*args, **kwargs)
    backend = region.backend
    framework: Repeats = backend.repeats
    tensors: list[Any] = []
    opaque: list[object] = []
    build = taken_apart((args, kwargs), framework, tensors, opaque)
    if framework.is_checkpointed() or vars(module).get("gradient_checkpointing"):
        region.judged(ALREADY)
    elif opaque:
        region.judged(f"takes a {type(opaque[0]).__qualname__}, which a second call may find changed")
    elif region.refusal is None:
        try:
            region.judged(*_proof(backend, module, call, tensors, build))
        except NoCopy as error:
            region.judged(str(error))
        except Exception:  # the call itself raises it, or makes weights, and draws the numbers that it would have drawn
            return call(*args, **kwargs)
    if region.refusal != "":
        return call(*args, **kwargs)

    is_again = False
    modes = [(part, part.training) for _, part in backend.named_modules(module)]

    def again(*tensors: Any) -> Any:
        args, kwargs = build(tensors)
        if not is_again:
            return call(*args, **kwargs)
        with as_before(backend, module, modes, writes=region.writes):
            return call(*args, **kwargs)

    outputs = framework.repeat(again, module, tensors)
    is_again = True
    return outputs


def _proof(
    backend: Any, module: Any, call: Callable[..., Any], tensors: list[Any], build: Callable[[Any], Any]
) -> tuple[str, bool, int]:
    """Return why a module cannot be called again, empty if it can, whether it writes buffers, and the saved bytes.

    It runs twice on copies of its arguments and of its state, from the same random numbers, and both runs have to save
    the same bits.
    """
    weights = [weight for _, part in backend.named_modules(module) for weight in part._parameters.values()]
    versions = _versions(backend, weights)
    with isolated(backend, module) as changes:
        own = {_address(backend, space[key]) for space, key in buffers_of(backend, module)}
        refusal, saved, nbytes = _run(backend, call, tensors, build, own)
        try:
            _, saved_again, _ = _run(backend, call, tensors, build, own)
        except Exception as error:
            refusal, saved_again = refusal or f"raises {type(error).__name__} when it is called again", saved
        changed, writes = changes()
    if not refusal and changed:
        refusal = f"keeps a value of its own in {changed[0]}"
    if versions != _versions(backend, weights):
        refusal = refusal or "writes its weights in place"
    refusal = refusal or ("saves other values when it is called again" if saved != saved_again else "")
    return refusal, writes, nbytes


def _run(
    backend: Any, call: Callable[..., Any], tensors: list[Any], build: Callable[[Any], Any], own: set[int]
) -> tuple[str, list[Hashable], int]:
    """Call a module on copies of its arguments; ``own`` are the addresses of its buffers, which it may write.

    Returns why it cannot be called again, keys of the saved and returned tensors, and the bytes saved beside weights,
    buffers and arguments, where equal bits count once.
    """
    framework: Repeats = backend.repeats
    copies = [framework.copied(tensor) for tensor in tensors]
    versions = _versions(backend, copies)
    given = {_address(backend, copy) for copy in copies}
    args, kwargs = build(copies)
    before = apart((args, kwargs), is_argument)
    keys: list[Hashable] = []
    sizes: dict[Hashable, int] = {}
    is_done = False

    def pack(tensor: Any) -> None:
        nonlocal is_done
        is_done |= is_called_by(framework.source)
        keys.append(_key(backend, tensor, own))
        if isinstance(keys[-1], tuple) and _address(backend, tensor) not in given:
            sizes[keys[-1]] = tensor.element_size() * int(tensor.numel())

    with _same_numbers(framework, tensors) as drawn:
        try:
            with backend.hooks(pack, _refuse, trusted=True):
                outputs = call(*args, **kwargs)
        except _WantsBack:
            return "computes gradients of its own", [], 0
    returned: list[Any] = []
    opaque: list[object] = []
    taken_apart(outputs, framework, returned, opaque)
    keys += [_key(backend, tensor, own) for tensor in returned]
    shape, parts = apart((args, kwargs), is_argument)
    is_same = shape == before[0] and all(one is other for one, other in zip(parts, before[1], strict=True))
    if not is_same or _versions(backend, copies) != versions:
        refusal = "writes its arguments in place"
    elif is_done:
        refusal = ALREADY
    elif opaque and framework.reenters:
        refusal = f"returns a {type(opaque[0]).__qualname__}"
    else:
        refusal = f"draws numbers from {drawn[0]}, which is not set back" if drawn else ""
    return refusal, keys, sum(sizes.values())


class _WantsBack(Exception):  # noqa: N818  (no error: it ends a run)
    """Raised where a run asks for a saved tensor."""


def _refuse(packed: None) -> Any:
    raise _WantsBack


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
