"""Arguments without their tensors, and the state of modules, of which a proof has copies."""

import io
import pickle
import random
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

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


class NotRepeated(Exception):  # noqa: N818  (no error: it ends a proof)
    """Raised with the reason why a module is not computed again."""


class _Place(NamedTuple):
    number: int


def emptied(value: Any, framework: Repeats, tensors: list[Any], opaque: list[object]) -> Any:
    """Return arguments or outputs with places for their tensors; note these, and objects that others may change."""
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([emptied(part, framework, tensors, opaque) for part in value])
    if kind is dict:
        keys = emptied([*value], framework, tensors, opaque) if value else ()
        return dict(zip(keys, [emptied(part, framework, tensors, opaque) for part in value.values()], strict=True))
    if isinstance(value, framework.tensor):
        for number, tensor in enumerate(tensors):
            if tensor is value:
                return _Place(number)
        tensors.append(value)
        return _Place(len(tensors) - 1)
    if not isinstance(value, _CONSTANTS) and not isinstance(value, framework.constants):
        opaque.append(value)
    return value


def filled(value: Any, tensors: Any) -> Any:
    """Return what :func:`emptied` has emptied, with tensors in their places."""
    kind = type(value)
    if kind is _Place:
        return tensors[value.number]
    if kind is dict:
        return {filled(key, tensors): filled(part, tensors) for key, part in value.items()}
    if kind is tuple or kind is list:
        return kind([filled(part, tensors) for part in value])
    return value


def buffers_of(backend: Any, module: Any) -> list[tuple[dict[str, Any], str]]:
    """Return the tensors of a module that its calls may write: dictionaries, and names in them."""
    spaces = [space for _, part in backend.named_modules(module) for space in (part._buffers, part._parameters)]
    return [(space, key) for space in spaces for key, value in space.items() if backend.repeats.is_buffer(value)]


@contextmanager
def isolated(backend: Any, module: Any) -> Iterator[Callable[[], tuple[list[str], bool]]]:
    """Have calls of a module see and write a copy of its state, without the hooks of others.

    The attributes of all modules inside are copied, with the contents of their containers. The originals come back.

    Yields:
        A function that returns the names of attributes that have changed, and whether buffers were written in place.

    Raises:
        NotRepeated: there is state that cannot be copied.
    """
    framework: Repeats = backend.repeats
    spaces = [
        (name, space, space is not vars(part))
        for name, part in backend.named_modules(module)
        for space in (part._buffers, part._parameters, vars(part))
    ]
    held = [dict(space) for _, space, _ in spaces]

    def is_own(part: Any) -> bool:
        is_activation = isinstance(part, framework.tensor) and backend.keep_reason(part) not in WEIGHTS
        return is_activation or isinstance(part, framework.generator) or framework.is_buffer(part)

    def is_state(key: str, value: Any) -> bool:
        return key not in framework.notes and (is_own(value) or (_is_mixed(value) and not isinstance(value, _TEXT)))

    def state() -> dict[tuple[int, str], Any]:
        every = [(number, key, value) for number, space in enumerate(spaces) for key, value in space[1].items()]
        return {(number, key): value for number, key, value in every if is_state(key, value)}

    def prints() -> dict[tuple[int, str], Hashable]:
        found: dict[tuple[int, str], Hashable] = {}
        for place, value in state().items():
            shape, parts = _apart(value)
            found[place] = shape, *((id(part), framework.digest(part) if is_own(part) else None) for part in parts)
        return found

    def changes() -> tuple[list[str], bool]:
        after = prints()
        names, writes = [], False
        for number, key in {**before, **after}:
            name, space, holds_buffers = spaces[number]
            if before.get((number, key)) == after.get((number, key)):
                continue
            if holds_buffers and space.get(key) is twins.get((number, key)):
                writes = True
            else:
                names.append(f"{name}.{key}".lstrip("."))
        return names, writes

    try:
        shape, parts = _apart(state())
    except Exception as error:  # whatever the state of others raises
        raise NotRepeated(f"holds state that cannot be copied ({error})") from error
    copies = {id(part): framework.copied(part) for part in parts if is_own(part)}
    twins: dict[tuple[int, str], Any] = _together(shape, [copies.get(id(part), part) for part in parts])
    hooks = [(number, kind) for number, (_, space, _) in enumerate(spaces) for kind in _HOOKS & space.keys()]
    try:
        for (number, key), twin in twins.items():
            spaces[number][1][key] = twin
        for number, kind in hooks:
            spaces[number][1][kind] = _without_others(held[number][kind])
        before = prints()
        yield changes
    finally:
        for number, key in [*twins, *state(), *hooks]:
            if key in held[number]:
                spaces[number][1][key] = held[number][key]
            else:
                del spaces[number][1][key]


def _apart(value: Any) -> tuple[bytes, list[Any]]:
    """Return the shape of state, and its parts in order: all that is inside and not copied with its contents."""
    file = io.BytesIO()
    parts: list[Any] = []

    def number_of(part: Any) -> int | None:
        if _is_mixed(part):
            return None
        parts.append(part)
        return len(parts) - 1

    pickler = pickle.Pickler(file, 4)
    pickler.persistent_id = number_of  # type: ignore[method-assign]
    pickler.dump(value)
    return file.getvalue(), parts


def _together(shape: bytes, parts: list[Any]) -> Any:
    """Return new state of a shape, with these parts."""
    unpickler = pickle.Unpickler(io.BytesIO(shape))
    unpickler.persistent_load = parts.__getitem__  # type: ignore[method-assign]
    return unpickler.load()


def _is_mixed(value: Any) -> bool:
    """Return whether an attribute is written with all that is inside, so that it is copied and compared."""
    return isinstance(value, (*_TEXT, *_MIXED, *_DRAWERS)) and not isinstance(value, (random.SystemRandom, np.memmap))


def _without_others(hooks: dict[int, Any]) -> dict[int, Any]:
    functions = {key: getattr(hook, "func", hook) for key, hook in hooks.items()}
    others = {key for key, hook in functions.items() if not str(getattr(hook, "__module__", "")).startswith(_BRINGERS)}
    return type(hooks)((key, hook) for key, hook in hooks.items() if key not in others) if others else hooks
