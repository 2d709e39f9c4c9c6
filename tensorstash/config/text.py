"""The one-line form of policies.

::

    policy = step { "|" step }
    step   = name [ ":" option { "," option } ]
    option = key "=" value
    value  = plain | '"' any '"' | "'" any "'"

A plain value holds no comma, vertical bar or quotation mark; between quotation marks everything is plain, and the
mark itself is doubled. Spaces around each part do not count. A value gets its meaning from its field:
``4`` is a number for ``bits`` and a text for ``directory``. Lists have no one-line form.
"""

import re

from tensorstash.errors import ConfigError

_QUOTED = re.compile("'[^']*'|\"[^\"]*\"")

BARE = "(bare)"
"""The key of a value that was written without one."""


class Text(str):
    """A value out of a line of text, still to be read as its field wants it."""

    __slots__ = ()


def split_steps(line: str, path: str) -> list[dict[str, str]]:
    """Return the steps of a line, each with its name under ``"name"`` and its values as :class:`Text`."""
    texts = _split(line, "|", path)
    paths = [f"{path}.steps[{place}]" for place in range(len(texts))] if len(texts) > 1 else [path]
    return [_step(text, where) for text, where in zip(texts, paths, strict=True)]


def _step(text: str, path: str) -> dict[str, str]:
    name, colon, options = (part.strip() for part in text.partition(":"))
    if not name:
        raise ConfigError(f"{path}: got {text!r}, expected a step such as disk_spill or quantize:bits=8")
    step = {"name": name}
    for option in _split(options, ",", path) if colon else ():
        key, equals, value = (part.strip() for part in option.partition("="))
        if option and not equals:
            key, value = BARE, option
        if not key or not value:
            raise ConfigError(f"{path}: got {option!r} in {text!r}, expected key=value")
        if key in step and key != BARE:
            raise ConfigError(f"{path}.{key}: given twice in {text!r}")
        step[key] = Text(_unquote(value, f"{path}.{key}"))
    return step


def _split(text: str, separator: str, path: str) -> list[str]:
    """Split where the separator is outside of quotation marks."""
    bare = _QUOTED.sub(lambda quoted: "_" * len(quoted[0]), text)
    if left := re.search("['\"]", bare):
        raise ConfigError(f"{path}: the quotation mark {left[0]} is not closed in {text!r}")
    ends = [place for place, letter in enumerate(bare) if letter == separator]
    starts = [0, *(end + 1 for end in ends)]
    return [text[start:end].strip() for start, end in zip(starts, [*ends, len(text)], strict=True)]


def _unquote(value: str, path: str) -> str:
    mark, inside = value[0], value[1:-1]
    if mark not in "'\"":
        if "'" in value or '"' in value:
            raise ConfigError(f"{path}: got {value!r}; put all of a value that holds a quotation mark in marks")
        return value
    if value[-1] != mark or mark in inside.replace(2 * mark, ""):
        raise ConfigError(f"{path}: got {value!r}, expected nothing after the closing {mark}; double a mark inside")
    return inside.replace(2 * mark, mark)
