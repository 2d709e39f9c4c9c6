"""Arguments, outputs and attributes as text, apart from the tensors and other objects in them."""

import io
import pickle
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from tensorstash.abilities.checkpoints import Repeats

_PLAIN = {bool, int, float, str, bytes, type(None), tuple, list, dict}
_CONSTANTS = (bool, int, float, complex, str, bytes, slice, range, type(None))


def written(value: Any, is_text: Callable[[Any], bool], name: Callable[[Any], Hashable]) -> tuple[bytes, list[Any]]:
    """Return a value as text, with names for all parts that are no text, and those parts."""
    parts: list[Any] = []

    def name_of(part: Any) -> Hashable:
        if is_text(part):
            return None
        parts.append(part)
        return name(part)

    file = io.BytesIO()
    pickler = pickle.Pickler(file, 4)
    pickler.persistent_id = name_of  # type: ignore[method-assign]
    pickler.dump(value)
    return file.getvalue(), parts


def apart(value: Any, framework: Repeats) -> tuple[Callable[[Sequence[Any]], Any], list[Any], list[Any]]:
    """Return what makes arguments or outputs of other tensors; their tensors; and the objects that may change."""
    text, parts = written(value, lambda part: type(part) in _PLAIN, id)
    tensors = {id(part): part for part in parts if isinstance(part, framework.tensor)}
    others = {id(part): part for part in parts if id(part) not in tensors}
    numbers, constants = [*tensors], _CONSTANTS + framework.constants

    def made_of(values: Sequence[Any]) -> Any:
        unpickler = pickle.Unpickler(io.BytesIO(text))
        found = others | dict(zip(numbers, values, strict=True))
        unpickler.persistent_load = found.__getitem__  # type: ignore[method-assign]
        return unpickler.load()

    return made_of, [*tensors.values()], [part for part in others.values() if not isinstance(part, constants)]
