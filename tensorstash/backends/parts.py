"""Values taken apart into containers and the parts in them, and the state of modules, which is made of such values."""

import io
import pickle
import random
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tensorstash.abilities.checkpoints import Repeats

WEIGHTS = {"parameter", "view of a parameter"}
"""Reasons to keep a tensor whose bits nobody compares: sharding may take its memory away at any time."""

_CONSTANTS = (bool, int, float, complex, str, bytes, slice, range, type(None))

_TEXT = (str, bytes, type(None))

_MIXED = (int, float, dict, list, tuple, set, frozenset, deque, np.ndarray, np.generic, Iterator)
_DRAWERS = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)

_HOOKS = {"_forward_pre_hooks", "_forward_hooks", "_forward_post_hooks"}

_BRINGERS = ("torch.", "accelerate.", "paddle.")
"""Python modules whose hooks run in a proof: they bring weights. Those of others may count or collect."""

Place = tuple[dict[str, Any], str]
"""A dictionary of a module, and a name in it."""

Changes = tuple[list[str], bool]
"""Names of attributes that have changed, and whether buffers were written in place."""


class NoCopy(Exception):  # noqa: N818  (no error: it ends a proof)
    """Raised for state that cannot be copied."""


class _Pickler(pickle.Pickler):
    """Writes containers, however they are nested, and numbers in the place of all other parts."""

    def __init__(self, file: io.BytesIO, is_mixed: Callable[[Any], bool]) -> None:
        super().__init__(file, 4)
        self._is_mixed = is_mixed
        self.parts: list[Any] = []

    def persistent_id(self, part: Any) -> int | None:
        if self._is_mixed(part):
            return None
        self.parts.append(part)
        return len(self.parts) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, shape: bytes, parts: list[Any]) -> None:
        super().__init__(io.BytesIO(shape))
        self._parts = parts

    def persistent_load(self, number: Any) -> Any:
        return self._parts[number]


def apart(value: Any, is_mixed: Callable[[Any], bool]) -> tuple[bytes, list[Any]]:
    """Return the shape of a value, and its parts in order: all that is inside and not ``is_mixed``."""
    file = io.BytesIO()
    pickler = _Pickler(file, is_mixed)
    pickler.dump(value)
    return file.getvalue(), pickler.parts


def together(shape: bytes, parts: list[Any]) -> Any:
    """Return a new value of the shape that :func:`apart` gave, with these parts."""
    return _Unpickler(shape, parts).load()


def is_argument(value: Any) -> bool:
    """Return whether a value is one of the containers that arguments and outputs of modules may be in."""
    return type(value) in (dict, list, tuple)


def taken_apart(value: Any, framework: Repeats, tensors: list[Any], opaque: list[object]) -> Callable[[Any], Any]:
    """Return a function that builds a value of its tensors; note these, and objects that others may change."""
    shape, parts = apart(value, is_argument)
    known = {id(tensor): place for place, tensor in enumerate(tensors)}
    places: dict[int, int] = {}
    for number, part in enumerate(parts):
        if isinstance(part, framework.tensor):
            places[number] = known.setdefault(id(part), len(tensors))
            tensors += [part] if places[number] == len(tensors) else []
            parts[number] = None  # the function holds no tensor
        elif not isinstance(part, (*_CONSTANTS, *framework.constants)):
            opaque.append(part)
    return lambda given: together(shape, [given[places[n]] if n in places else part for n, part in enumerate(parts)])


def buffers_of(backend: Any, module: Any) -> list[Place]:
    """Return the places of the tensors of a module that its calls may write."""
    spaces = [space for _, part in backend.named_modules(module) for space in (part._buffers, part._parameters)]
    return [(space, key) for space in spaces for key, value in space.items() if backend.repeats.is_buffer(value)]


@contextmanager
def as_before(backend: Any, module: Any, modes: list[tuple[Any, bool]], *, writes: bool) -> Iterator[None]:
    """Have a module in the modes of an earlier call, and write its buffers into copies, so that their versions stay."""
    held = [(space, key, space[key]) for space, key in buffers_of(backend, module)] if writes else []
    copies = {id(buffer): backend.repeats.copied(buffer) for _, _, buffer in held}
    switched = [(part, mode) for part, mode in modes if part.training is not mode]
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


@contextmanager
def isolated(backend: Any, module: Any) -> Iterator[Callable[[], Changes]]:
    """Have calls of a module see and write a copy of its state, without the hooks of others; tell their changes.

    The attributes of all modules inside are copied, with the contents of their containers. The originals come back.

    Raises:
        NoCopy: there is state that cannot be copied.
    """
    framework: Repeats = backend.repeats
    modules = list(backend.named_modules(module))
    spaces = [(name, space) for name, part in modules for space in (part._buffers, part._parameters)]
    buffers = {id(space) for _, space in spaces}
    spaces += [(name, vars(part)) for name, part in modules]
    held = [dict(space) for _, space in spaces]

    def is_own(part: Any) -> bool:
        is_activation = isinstance(part, framework.tensor) and backend.keep_reason(part) not in WEIGHTS
        return is_activation or isinstance(part, framework.generator) or framework.is_buffer(part)

    def is_state(key: str, value: Any) -> bool:
        return key not in framework.notes and (is_own(value) or (_is_mixed(value) and not isinstance(value, _TEXT)))

    def state() -> dict[str, Place]:
        every = [(f"{name}.{key}".lstrip("."), space, key) for name, space in spaces for key in space]
        return {name: (space, key) for name, space, key in every if is_state(key, space[key])}

    def prints() -> dict[str, Hashable]:
        found: dict[str, Hashable] = {}
        for name, (space, key) in state().items():
            shape, parts = apart(space[key], _is_mixed)
            found[name] = shape, *((id(part), framework.digest(part) if is_own(part) else None) for part in parts)
        return found

    def changes() -> Changes:
        after = prints()
        changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        written = [
            name for name, (space, key) in places.items() if id(space) in buffers and space.get(key) is twins[name]
        ]
        return [name for name in changed if name not in written], not set(written).isdisjoint(changed)

    places = state()
    try:
        shape, parts = apart({name: space[key] for name, (space, key) in places.items()}, _is_mixed)
    except Exception as error:  # whatever the state of others raises
        raise NoCopy(f"holds state that cannot be copied ({error})") from error
    copies = {id(part): framework.copied(part) for part in parts if is_own(part)}
    twins: dict[str, Any] = together(shape, [copies.get(id(part), part) for part in parts])
    try:
        for name, (space, key) in places.items():
            space[key] = twins[name]
        for _, space in spaces:
            space.update({kind: _without_others(space[kind]) for kind in _HOOKS & space.keys()})
        before = prints()
        yield changes
    finally:
        for (_, space), originals in zip(spaces, held, strict=True):
            for key in {**originals, **space}:
                if key in _HOOKS or is_state(key, space.get(key)) or is_state(key, originals.get(key)):
                    if key in originals:
                        space[key] = originals[key]
                    else:
                        del space[key]


def _is_mixed(value: Any) -> bool:
    """Return whether an attribute is written with all that is inside, so that it is copied and compared."""
    return isinstance(value, (*_TEXT, *_MIXED, *_DRAWERS)) and not isinstance(value, (random.SystemRandom, np.memmap))


def _without_others(hooks: dict[int, Any]) -> dict[int, Any]:
    functions = {key: getattr(hook, "func", hook) for key, hook in hooks.items()}
    others = {key for key, hook in functions.items() if not str(getattr(hook, "__module__", "")).startswith(_BRINGERS)}
    return type(hooks)((key, hook) for key, hook in hooks.items() if key not in others) if others else hooks
