"""A copy of the state of a module, which calls see and write in its place: all that they can change but the weights."""

import copy
import pickle
import random
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from numbers import Number
from typing import Any

import numpy as np

WEIGHTS = {"parameter", "view of a parameter"}
"""Reasons to keep a tensor whose bits nobody compares: sharding may take its memory away at any time."""

_HOOKS = {"_forward_pre_hooks", "_forward_hooks", "_forward_post_hooks"}

_NUMBERS = (Number, np.generic)

_MIXED = (dict, list, deque, set, tuple)

_DRAWERS = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)

_SHARED = "shared"
"""Stands for weights, text, None and objects of other classes: calls share them, and nobody compares them."""

Place = tuple[dict[str, Any], str]
"""A dictionary of a module, and a name in it."""

Changes = tuple[list[str], tuple[str, ...]]
"""Names of attributes that have changed, and of buffers that were written in place."""


class NoCopy(Exception):  # noqa: N818  (no error: it ends a proof)
    """Raised for state that cannot be copied."""


def buffers_of(backend: Any, module: Any) -> dict[str, Place]:
    """Return the places of the tensors of a module that its calls may write, by their names."""
    return {
        _named(name, key): (space, key)
        for name, part in backend.named_modules(module)
        for space in (part._buffers, part._parameters)
        for key, value in space.items()
        if backend.repeats.is_buffer(value)
    }


@contextmanager
def unwritten(places: Iterable[Place]) -> Iterator[None]:
    """Leave buffers as they are, whatever a call writes: into copies, since backward would refuse a new version."""
    held = [(space, key, space[key]) for space, key in places]
    copies = {id(buffer): buffer.detach().clone() for _, _, buffer in held}
    try:
        for space, key, buffer in held:
            space[key] = copies[id(buffer)]
        yield
    finally:
        for space, key, buffer in held:
            space[key] = buffer


@contextmanager
def isolated(backend: Any, module: Any) -> Iterator[Callable[[], Changes]]:
    """Have calls of a module see and write a copy of its state, without the hooks of others; tell what they change.

    The attributes of all modules inside are copied, with what is in their containers. The originals come back.

    Raises:
        NoCopy: there is state that cannot be copied.
    """
    framework = backend.repeats
    parts = list(backend.named_modules(module))
    # Buffers come first: what else refers to one then refers to its copy.
    spaces = [(name, space, True) for name, part in parts for space in (part._buffers, part._parameters)]
    spaces += [(name, vars(part), False) for name, part in parts]
    held = [dict(space) for _, space, _ in spaces]
    copies: dict[int, tuple[Any, Any]] = {}
    try:
        for (name, space, is_tensors), originals in zip(spaces, held, strict=True):
            for key, value in originals.items():
                if key in _HOOKS:
                    kept = [item for item in value.items() if _brings_weights(framework, item[1])]
                    space[key] = value if len(kept) == len(value) else type(value)(kept)
                elif is_tensors and framework.is_buffer(value):
                    space[key] = _with(copies, value, value.detach().clone())
                elif key not in framework.notes:
                    space[key] = _copied(backend, value, _named(name, key), copies)
        before = [_prints(backend, space) for _, space, _ in spaces]

        def changes() -> Changes:
            changed: list[str] = []
            written: list[str] = []
            for (name, space, is_tensors), old in zip(spaces, before, strict=True):
                new = _prints(backend, space)
                for key in [key for key in {**old, **new} if new.get(key, _SHARED) != old.get(key, _SHARED)]:
                    is_written = is_tensors and key in new and key in old and new[key][0] == old[key][0]
                    (written if is_written else changed).append(_named(name, key))
            return changed, tuple(written)

        yield changes
    finally:
        for (_, space, _), originals in zip(spaces, held, strict=True):
            for key in [*space, *(originals.keys() - space.keys())]:
                now, then = space.get(key), originals.get(key)
                if now is then or (key in framework.notes and key not in _HOOKS):
                    continue
                if key in originals and (key in _HOOKS or _is_value(backend, now) or _is_value(backend, then)):
                    space[key] = then
                elif _is_value(backend, now):
                    del space[key]


def _named(module: str, key: str) -> str:
    return f"{module}.{key}".lstrip(".")


def _brings_weights(framework: Any, hook: Any) -> bool:
    function = getattr(hook, "func", hook)
    return str(getattr(function, "__module__", "")).startswith(framework.bringers)


def _with(copies: dict[int, tuple[Any, Any]], value: Any, twin: Any) -> Any:
    """Note the copy of a value, and the value, whose ``id`` would be given to another one otherwise."""
    copies[id(value)] = twin, value
    return twin


def _copied(backend: Any, value: Any, name: str, copies: dict[int, tuple[Any, Any]]) -> Any:
    """Return a copy of an attribute; what belongs to frameworks and to other modules is shared."""
    framework, kind = backend.repeats, type(value)
    if id(value) in copies:
        return copies[id(value)][0]
    if isinstance(value, Iterator):
        raise NoCopy(f"holds a {kind.__qualname__} in {name}, which a second call would find further on")
    if kind is framework.tensor and backend.keep_reason(value) not in WEIGHTS:
        return _with(copies, value, framework.copied(value))
    if isinstance(value, framework.generator):
        return _with(copies, value, framework.copied_generator(value))
    if _is_drawer(value) or kind is np.ndarray:
        return _with(copies, value, copy.deepcopy(value))
    if kind is tuple:
        return tuple(_copied(backend, item, name, copies) for item in value)
    if not isinstance(value, _MIXED) or isinstance(value, tuple):
        return value
    twin = _with(copies, value, copy.copy(value))
    if isinstance(value, dict):
        for key, item in value.items():
            twin[key] = _copied(backend, item, name, copies)
    elif not isinstance(value, set):
        for place, item in enumerate(value):
            twin[place] = _copied(backend, item, name, copies)
    return twin


def _is_value(backend: Any, value: Any) -> bool:
    """Return whether an attribute is state of the module, which calls may change."""
    framework = backend.repeats
    if isinstance(value, framework.tensor):
        return backend.keep_reason(value) not in WEIGHTS
    return isinstance(value, (*_NUMBERS, *_MIXED, np.ndarray, framework.generator)) or _is_drawer(value)


def _is_drawer(value: Any) -> bool:
    return isinstance(value, _DRAWERS) and not isinstance(value, random.SystemRandom)  # which has no state


def _prints(backend: Any, space: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _print(backend, value, set())
        for key, value in space.items()
        if key not in backend.repeats.notes and _is_value(backend, value)
    }


def _print(backend: Any, value: Any, around: set[int]) -> Hashable:
    """Return a key that tells a value from itself after a change; ``around`` are the containers that it is in."""
    framework = backend.repeats
    if isinstance(value, (*_NUMBERS, str, bytes)):
        return type(value), value
    if not _is_value(backend, value) or id(value) in around:
        return id(value)
    if isinstance(value, framework.tensor):
        is_plain = type(value) is framework.tensor or framework.is_buffer(value)
        return id(value), framework.digest(value) if is_plain else None
    if isinstance(value, np.ndarray):
        return id(value), value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, framework.generator):
        return id(value), framework.generator_state(value)
    if _is_drawer(value):
        return id(value), pickle.dumps(value)
    around = around | {id(value)}
    pairs = value.items() if isinstance(value, dict) else ((item, None) for item in value)
    parts = [(_print(backend, item, around), _print(backend, other, around)) for item, other in pairs]
    return type(value), frozenset(parts) if isinstance(value, set) else tuple(parts)
