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

from tensorstash.errors import ConfigError

BARE = "(bare)"
"""The key of a value that was written without one."""


class Text(str):
    """A value out of a line of text, still to be read as its field wants it."""

    __slots__ = ()


def split_steps(line: str, path: str) -> list[dict[str, str]]:
    """Return the steps of a line, each with its name under ``"name"`` and its values as :class:`Text`.

    Raises:
        ConfigError: the line does not follow the grammar.

    >>> split_steps("cast | disk_spill:directory='/a,b'", "policy")
    [{'name': 'cast'}, {'name': 'disk_spill', 'directory': '/a,b'}]
    """
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
    pieces = [""]
    mark = ""
    for letter in text:
        if letter == separator and not mark:
            pieces.append("")
            continue
        if mark:
            mark = "" if letter == mark else mark
        elif letter in "'\"":
            mark = letter
        pieces[-1] += letter
    if mark:
        raise ConfigError(f"{path}: the quotation mark {mark} is not closed in {text!r}")
    return [piece.strip() for piece in pieces]


def _unquote(value: str, path: str) -> str:
    mark = value[0]
    if mark not in "'\"":
        if "'" in value or '"' in value:
            raise ConfigError(f"{path}: got {value!r}; put all of a value that holds a quotation mark in marks")
        return value
    inside = value[1:-1]
    if len(value) < 2 or value[-1] != mark or mark in inside.replace(2 * mark, ""):
        raise ConfigError(f"{path}: got {value!r}, expected nothing after the closing {mark}; double a mark inside")
    return inside.replace(2 * mark, mark)
