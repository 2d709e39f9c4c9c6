"""The package speaks the words of its field, one for each concept: names that it once had of its own stay out."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tensorstash"

RETIRED = {
    "passage": "route",
    "tape": "dedup index",
    "patience": "timeout",
    "witness": "version probe",
    "crew": "thread pool",
    "shelf": "free list",
    "echo": "round trip",
    "lane": "side stream",
}
"""Words that are nowhere, neither in names nor in prose, and what is said instead."""

RETIRED_NAMES = {
    "latest": "resident window",
    "let_go": "release",
    "give_up": "abandon",
    "given_up": "abandoned",
    "crossing": "transfer",
    "crossed": "transferred",
    "coming": "expected next",
    "read_ahead": "prefetch",
    "bring_ahead": "prefetch",
}
"""Words that are fine in prose, and are part of no name."""

RETIRED_IN_ENGINE = {
    "column": "interleaved place",
    "strip": "interleaved view",
    "table": "interleaved group",
    "near": "quick",
    "stay": "a route of its own",
    "ahead": "prefetch",
}
"""Words that mean something in other folders, and are part of no name of the engine."""

PUBLIC = {"ahead", "ahead_bytes"}
"""Names of the engine that users write: the fields of ``Limits``."""


def words_of(text: str) -> list[str]:
    """Return the words of prose or of a name, in lower case and in the singular.

    >>> words_of("_readAhead of TwoWitnesses")
    ['read', 'ahead', 'of', 'two', 'witness']
    """
    found = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", text)
    return [re.sub("(?<=ss)es$|(?<!s)s$", "", word.lower()) for word in found]


def names_in(tree: ast.Module) -> Iterator[str]:
    """Yield every name that a file gives to something."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def prose_in(source: str) -> Iterator[str]:
    """Yield the comments of a file, and its strings: docstrings, and what errors say."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield token.string


def retired_in(source: str, *, is_engine: bool) -> list[str]:
    """Return what a file says with a retired word, and what to say instead."""
    found = []
    names = [name for name in names_in(ast.parse(source)) if name not in PUBLIC]
    of_names = RETIRED_NAMES | (RETIRED_IN_ENGINE if is_engine else {})
    for text in (*names, *prose_in(source)):
        found += [f"{text[:80]!r}: say {RETIRED[word]}" for word in words_of(text) if word in RETIRED]
    for name in names:
        joined = "_" + "_".join(words_of(name)) + "_"
        found += [f"{name}: say {better}" for word, better in of_names.items() if f"_{word}_" in joined]
    return found


@pytest.mark.parametrize("folder", sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() or path.suffix))
def test_no_name_docstring_comment_or_message_has_a_retired_word(folder: str) -> None:
    place = PACKAGE / folder
    for path in [place] if place.is_file() else place.rglob("*.py"):
        if path.suffix == ".py":
            assert not retired_in(path.read_text(encoding="utf-8"), is_engine=folder == "engine"), path


def test_no_page_has_a_retired_word() -> None:
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        assert not set(words_of(path.read_text(encoding="utf-8"))) & set(RETIRED), path


@pytest.mark.parametrize(
    ("source", "is_engine"),
    [
        ("class OldTape: ...", False),
        ("def f(latest_payload): ...", False),
        ("self._echo = 1", False),
        ("value = 1  # a witness of it", False),
        ("def f():\n    '''Return after the crew has ended.'''", False),
        ("def let_go(): ...", False),
        ("raise ValueError('out of patience')", False),
        ("table = 1", True),
        ("ahead_of = 1", True),
    ],
)
def test_a_retired_word_is_found(source: str, is_engine: bool) -> None:
    assert retired_in(source, is_engine=is_engine)


@pytest.mark.parametrize(
    ("source", "is_engine"),
    [
        ("table = text.strip()", False),
        ("'''The latest step stays ahead.'''", True),
        ("def ahead_bytes(): ...", True),
        ("nearest = escrew = taped = 1", True),
    ],
)
def test_ordinary_english_is_let_through(source: str, is_engine: bool) -> None:
    assert not retired_in(source, is_engine=is_engine)
