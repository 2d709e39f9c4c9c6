"""The rules of the house, read from the source: who may import whom, and what the package shows."""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import tensorstash

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tensorstash"

FRAMEWORKS = {"torch": "torch", "paddle": "paddle"}
"""Import names, and the word a file or folder that imports them has in its name."""

DEPENDENCIES = {"numpy", "xxhash", "zstandard"}

COMPANIONS = {"torch": {"triton"}, **{name: {name} for name in ("accelerate", "lightning", "transformers")}}
"""What comes with a framework, or trains with it, and is imported only where its name stands."""

OPTIONAL = {
    "cli.comparison": {"matplotlib"},
    "config.files": {"yaml"},
    "integrations.paddleformers": {"paddleformers"},
    "planner.bound": {"scipy"},
    "planner.plot": {"matplotlib"},
}
"""What a module imports only where it is asked for, and what no extra has."""

RANKS = {
    "errors": 0,
    "spec": 0,
    "sizes": 0,
    "host": 1,
    "kernels": 1,
    "protocols": 1,
    "abilities": 1,
    "registry": 2,
    "codecs": 2,
    "stores": 2,
    "backends": 2,
    "policies": 3,
    "config": 3,
    "config.settings": 4,
    "engine.limits": 4,
    "engine": 5,
    "planner": 5,
    "engine.payloads": 6,
    "engine.state": 7,
    "engine.prefetch": 7,
    "engine.handle": 7,
    "engine.scope": 7,
    "engine.session": 8,
    "engine.planned": 8,
    "engine.recompute": 8,
    "api": 9,
    "drop_ins": 9,
    "integrations": 10,
    "testing": 10,
    "cli": 10,
    "__main__": 10,
}
"""The rank of each file, or of all in a folder; a file imports none of a higher one, and there are no cycles."""

ROOF = 11
"""The package itself, with the public names."""

PLUGGABLE = {"codecs", "stores", "backends"}
"""Folders whose files see what a plug-in sees: ranks 0 and 1, and their own folder."""

KERNELS = {"backends.torch.device_kernels", "backends.torch.operators", "backends.torch.triton.language"}
"""Files of a backend that run codecs of the package, and so have to know them: they see the codecs too."""


def modules() -> dict[str, Path]:
    """Return every module of the package by its name inside the package; the package itself has the empty name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(path: Path, *, deferred: bool) -> Iterator[str]:
    """Yield the dotted name of everything the file imports, with what is imported from it.

    Args:
        path: a file of the package.
        deferred: also imports inside functions; those under ``if TYPE_CHECKING`` always.
    """
    for node in _reached(tree(path), deferred=deferred):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = ".".join(filter(None, (*path.relative_to(ROOT).parts[: -node.level], node.module)))
            yield from (f"{source if node.level else node.module}.{alias.name}" for alias in node.names)


def _reached(node: ast.AST, *, deferred: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if deferred or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from _reached(child, deferred=deferred)


def inside(name: str) -> str | None:
    """Return the module of the package that an imported name is in, or None for a name from elsewhere."""
    top, _, rest = name.partition(".")
    if top != "tensorstash":
        return None
    while rest not in MODULES:
        rest = rest.rpartition(".")[0]
    return rest


def reference_modules() -> set[str]:
    return {module for module in MODULES if folder(module) == "reference"}


def internal_imports(module: str, *, deferred: bool = True) -> set[str]:
    """Return the modules of the package that a module imports."""
    targets = {inside(name) for name in imports(MODULES[module], deferred=deferred)}
    return {target for target in targets if target is not None and target != module}


def rank(module: str) -> int:
    """Return the rank of the module, or of the nearest package around it that has one."""
    while module not in RANKS:
        assert module, "a module without a rank"
        module = module.rpartition(".")[0]
    return RANKS[module]


def folder(module: str) -> str:
    return module.partition(".")[0]


RANKED = [module for module in MODULES if module and folder(module) != "reference"]


def test_the_house_has_few_rooms_on_each_floor() -> None:
    in_folders = Counter(path.parent for path in MODULES.values() if path.name != "__init__.py")
    assert in_folders[PACKAGE] <= 9
    assert {folder: count for folder, count in in_folders.items() if count > 12} == {}


def test_every_module_has_a_rank_and_every_rank_a_module() -> None:
    assert all(folder(module) in RANKS for module in RANKED)
    assert set(RANKS) <= set(MODULES) | {"testing"}


@pytest.mark.parametrize("module", RANKED)
def test_imports_point_down(module: str) -> None:
    targets = {target: rank(target) if target else ROOF for target in internal_imports(module) - reference_modules()}
    assert not {target: above for target, above in targets.items() if above > rank(module)}


@pytest.mark.parametrize("module", [module for module in RANKED if folder(module) in PLUGGABLE and "." in module])
def test_built_ins_see_no_more_than_plug_ins(module: str) -> None:
    others = {target for target in internal_imports(module) - reference_modules() if folder(target) != folder(module)}
    assert not {
        target for target in others if rank(target) > 1 and (folder(target) != "codecs" or module not in KERNELS)
    }


def test_only_files_named_after_it_import_the_reference_engine() -> None:
    importers = {module for module in RANKED if internal_imports(module) & reference_modules()}
    assert not {module for module in importers if "reference" not in module}


def test_the_reference_engine_stands_alone() -> None:
    for module in MODULES:
        if module.partition(".")[0] == "reference":
            foreign = {target for target in internal_imports(module) if target.partition(".")[0] != "reference"}
            assert not foreign, f"{module} imports {foreign}"


def test_no_import_cycles() -> None:
    edges = {module: internal_imports(module, deferred=False) for module in MODULES}
    finished: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"import cycle: {' -> '.join((*path, module))}"
        if module not in finished:
            for target in edges[module]:
                visit(target, (*path, module))
            finished.add(module)

    for module in MODULES:
        visit(module, ())


@pytest.mark.parametrize(("framework", "word"), FRAMEWORKS.items())
def test_frameworks_are_imported_only_where_their_name_stands(framework: str, word: str) -> None:
    places = [*MODULES.values(), *(ROOT / "benchmarks").rglob("*.py")]
    strays = [
        path
        for path in places
        if word not in "/".join(path.relative_to(ROOT).parts)
        and framework in {name.partition(".")[0] for name in imports(path, deferred=True)}
    ]
    assert not strays


def test_every_third_party_import_is_a_declared_dependency() -> None:
    known = {*sys.stdlib_module_names, *DEPENDENCIES, *FRAMEWORKS, "tensorstash"}
    for module, path in MODULES.items():
        extra = {"pytest", "hypothesis"} if module.partition(".")[0] == "testing" else set()
        extra = extra.union(*(names for framework, names in COMPANIONS.items() if framework in module))
        extra = extra | OPTIONAL.get(module, set())
        tops = {name.partition(".")[0] for name in imports(path, deferred=True)}
        assert tops <= known | extra, f"{module} imports {tops - known - extra}"


def test_importing_the_package_imports_no_framework() -> None:
    program = (
        "import sys; before = set(sys.modules); import tensorstash\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {name for name in printed.stdout.split() if name.lstrip("_") not in sys.stdlib_module_names}
    third_party = {name for name in loaded - sys.stdlib_module_names if not name.startswith("_")}
    assert "tensorstash" in third_party
    assert third_party <= {"tensorstash", *DEPENDENCIES}


def test_all_lists_exactly_what_is_exported() -> None:
    tops = tree(PACKAGE / "__init__.py").body
    imported = {alias.asname or alias.name for node in tops if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(tensorstash.__all__) == imported
    assert tensorstash.__all__ == sorted(set(tensorstash.__all__))


def public_definitions() -> Iterator[tuple[str, ast.AST]]:
    for module, path in MODULES.items():
        yield module or "tensorstash", tree(path)
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                yield f"{module}.{node.name}", node


def test_every_public_name_has_a_docstring() -> None:
    without = [name for name, node in public_definitions() if not ast.get_docstring(node)]  # type: ignore[arg-type]
    assert not without


def test_no_file_holds_more_than_400_lines() -> None:
    lengths = {path: path.read_text(encoding="utf-8").count("\n") for path in MODULES.values()}
    assert not {str(path): length for path, length in lengths.items() if length > 400}


def test_no_module_is_named_after_nothing() -> None:
    words = {part for module in MODULES for part in module.split(".")}
    assert not words & {"utils", "common", "base", "misc", "helpers"}


def test_tests_do_not_sleep() -> None:
    sleeping = []
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute) and node.attr == "sleep":
                sleeping.append(f"{path}:{node.lineno}")
            if isinstance(node, ast.ImportFrom) and any(alias.name == "sleep" for alias in node.names):
                sleeping.append(f"{path}:{node.lineno}")
    assert not sleeping
