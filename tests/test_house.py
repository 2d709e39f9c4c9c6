"""The rules of the house, read from the source: which folder imports which, and how large a file may be."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import tensorstash
from tests.documents import ROOT
from tests.processes import output_of

PACKAGE = ROOT / "tensorstash"
PATHS = sorted(PACKAGE.rglob("*.py"))

RANKS = {
    name: rank
    for rank, names in enumerate(
        (
            "errors spec reference",
            "sizes registry protocols",
            "host",
            "kernels abilities",
            "codecs stores",
            "policies backends",
            "config",
            "engine",
            "api",
            "drop_ins footprint",
            "integrations testing cli",
            "__init__ __main__",
        )
    )
    for name in names.split()
}
"""A folder of the package, or a file beside them, imports those of a lower rank only."""

DEPENDENCIES = {"numpy", "xxhash", "zstandard"}
UNDER_ITS_NAME = ("torch", "paddle", "triton", "lightning", "transformers", "paddleformers")
OPTIONAL = {"config/files.py": {"yaml"}, "testing": {"pytest"}}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def imports(path: Path) -> set[str]:
    """Return the dotted names of all that a file imports, also inside functions and for the type checker alone."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = path.relative_to(ROOT).parts[: -node.level] if node.level else ()
            source = ".".join((*above, *([node.module] if node.module else ())))
            found |= {f"{source}.{alias.name}" for alias in node.names}
    return found


def room(path: Path) -> str:
    """Return the folder that a file is in, or its own name beside the folders."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def rooms_imported(path: Path) -> set[str]:
    """Return the rooms that a file imports, without its own."""
    inside = {name.split(".")[1] for name in imports(path) if name.startswith("tensorstash.")}
    return {name if name in RANKS else "__init__" for name in inside} - {room(path)}


@pytest.mark.parametrize("name", RANKS)
def test_a_folder_imports_only_folders_of_a_lower_rank(name: str) -> None:
    above = {
        f"{path.relative_to(PACKAGE)} imports {target}"
        for path in PATHS
        if room(path) == name
        for target in rooms_imported(path)
        if RANKS[target] >= RANKS[name]
    }
    assert not above


def test_every_folder_has_a_rank() -> None:
    assert {room(path) for path in PATHS} == set(RANKS)


@pytest.mark.parametrize("name", [*UNDER_ITS_NAME, "tensorstash.reference"])
def test_a_framework_is_imported_only_under_its_name(name: str) -> None:
    word = name.removeprefix("tensorstash.")
    allowed = {"torch", word} if word in ("triton", "transformers") else {word}
    strays = [
        str(path)
        for path in (*PATHS, *(ROOT / "benchmarks").rglob("*.py"))
        if any(imported == name or imported.startswith(f"{name}.") for imported in imports(path))
        and not any(one in path.relative_to(ROOT).as_posix() for one in allowed)
    ]
    assert not strays


def test_every_third_party_import_is_a_declared_dependency() -> None:
    known = {*sys.stdlib_module_names, *DEPENDENCIES, *UNDER_ITS_NAME, "tensorstash"}
    for path in PATHS:
        place = path.relative_to(PACKAGE).as_posix()
        extra = OPTIONAL.get(place, set()) | OPTIONAL.get(place.partition("/")[0], set())
        assert {name.partition(".")[0] for name in imports(path)} <= known | extra, place


def test_importing_the_package_imports_no_framework() -> None:
    program = (
        "import sys; before = set(sys.modules); import tensorstash\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    loaded = {name for name in output_of(program).split() if name.lstrip("_") not in sys.stdlib_module_names}
    assert "tensorstash" in loaded
    assert {name for name in loaded if not name.startswith("_")} <= {"tensorstash", *DEPENDENCIES}


def test_all_lists_exactly_what_is_exported() -> None:
    tops = tree(PACKAGE / "__init__.py").body
    imported = {alias.asname or alias.name for node in tops if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(tensorstash.__all__) == imported
    assert tensorstash.__all__ == sorted(set(tensorstash.__all__))


def test_every_public_name_has_a_docstring() -> None:
    for path in PATHS:
        public = [
            node
            for node in tree(path).body
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
        ]
        assert [node for node in (tree(path), *public) if not ast.get_docstring(node)] == [], path


def test_no_file_is_long_and_none_is_named_after_nothing() -> None:
    folders = [ROOT / name for name in ("tensorstash", "native", "tests", "benchmarks")]
    sources = [path for folder in folders for path in folder.rglob("*.*") if path.suffix in (".py", ".c", ".h", ".cpp")]
    lengths = {path: path.read_bytes().count(b"\n") for path in sources}
    assert not {str(path): length for path, length in lengths.items() if length > 400}
    words = {part for path in PATHS for part in path.relative_to(PACKAGE).with_suffix("").parts}
    assert not words & {"utils", "common", "base", "misc", "helpers"}


def assigned_from_outside(path: Path) -> Iterator[str]:
    """Yield the places of a file where an attribute of something other than ``self`` or ``cls`` is assigned.

    A static method may do so for objects of its class, which are named by the last word of that: a group of them
    changes in one frame.
    """
    own: dict[int, str] = {}
    for kind in (node for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)):
        for method in (node for node in kind.body if isinstance(node, ast.FunctionDef)):
            if [ast.unparse(decorator) for decorator in method.decorator_list] == ["staticmethod"]:
                name = re.findall("[A-Z][a-z]*", kind.name)[-1].lower()
                own |= {id(node): name for node in ast.walk(method)}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            owner = node.value
            if not (isinstance(owner, ast.Name) and owner.id in ("self", "cls", own.get(id(node)))):
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"


def test_state_of_the_engine_changes_only_inside_the_object_that_owns_it() -> None:
    places = [place for path in PATHS if room(path) == "engine" for place in assigned_from_outside(path)]
    assert not places


def test_tests_do_not_sleep() -> None:
    for path in (path for path in (ROOT / "tests").rglob("*.py") if "sleep" in path.read_text(encoding="utf-8")):
        asleep = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute) and node.attr == "sleep"]
        assert asleep == [], path
        assert not {name for name in imports(path) if name.rpartition(".")[2] == "sleep"}, path
