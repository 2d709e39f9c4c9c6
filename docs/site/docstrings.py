"""An extension of griffe: docstrings as Python reads them become Markdown, with examples as code and roles as names."""

import re
from typing import Any

import griffe

ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?([\w]+)`")
EXAMPLE = re.compile(r"((?:^>>> .*\n?)(?:^.+\n?)*(?:\n?^>>> .*\n?(?:^.+\n?)*)*)", re.MULTILINE)


def plain(text: str) -> str:
    """Return a docstring in Markdown."""
    named = ROLE.sub(r"`\1`", text).replace("``", "`")
    return EXAMPLE.sub(lambda found: f"Examples:\n\n```pycon\n{found[1].rstrip()}\n```\n", named)


class Plain(griffe.Extension):
    """Rewrites every docstring that is loaded."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Rewrite one."""
        if obj.docstring:
            obj.docstring.value = plain(obj.docstring.value)
