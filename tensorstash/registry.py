"""Names in configurations, and the classes they stand for."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from threading import RLock

from tensorstash.errors import ConfigError, MissingDependencyError


def did_you_mean(name: object, known: Iterable[str], listed: Iterable[str] | None = None) -> str:
    """Return the end of a message about an unknown name: the nearest known one, and all of them.

    Args:
        name: as it was written.
        known: names that would do.
        listed: those of them that are listed; all by default.

    >>> did_you_mean("qantize", ["keep", "quantize"])
    "did you mean 'quantize'? Known: keep, quantize"
    """
    names, text = sorted(known), str(name).lower()
    nearest = get_close_matches(str(name), names, n=1) or [each for each in names if len(text) > 2 and text in each]
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    return f"{hint}Known: {', '.join(names if listed is None else sorted(listed)) or 'none'}"


@dataclass(frozen=True, slots=True)
class _Row:
    target: str
    """``"module:Class"``."""
    origin: str
    """The origin of the name, for messages."""
    install_hint: str = ""
    kind: type | None = None
    """The class itself, where it was registered."""
    rival: "_Row | None" = None
    """Another row that claims the same name, which makes the name unusable."""


_BUILT_IN = {
    "policies": {
        "policies.placement": "keep=Keep cpu_offload=CpuOffload disk_spill=DiskSpill store_in=StoreIn",
        "policies.encoding": "encode=Encode compress=Compress quantize=Quantize cast=Cast pack_masks=PackMasks",
        "policies.recompute": "recompute=Recompute",
        "policies.policy": "chain=Chain",
        "policies.checkpoint": "checkpoint=Checkpoint",
        "policies.route": "route=Route",
    },
    "selectors": {
        "policies.selectors": "min_bytes=MinBytes dtypes=Dtypes devices=Devices "
        "module_names=ModuleNames all=All any=Any not=Not",
    },
    "codecs": {
        "codecs.zstd": "zstd=Zstd",
        "codecs.pack_bits": "pack_bits=PackBits",
        "codecs.affine": "affine=Affine",
        "codecs.astype": "astype=AsType",
        "codecs.two_valued": "two_valued=TwoValued",
        "codecs.sparse": "sparse=Sparse",
        "codecs.lossless": "lossless=Lossless",
    },
    "stores": {"stores.memory": "memory=Memory", "stores.disk.store": "disk=Disk"},
    "backends": {
        "backends.torch.backend": "torch=TorchBackend",
        "backends.paddle.backend": "paddle=PaddleBackend",
        "backends.reference.backend": "reference=ReferenceBackend",
    },
    "recipes": {},
}
"""By group and module, names and their classes."""

_INSTALL_HINTS = {name: f"pip install tensorstash[{name}]" for name in ("torch", "paddle")}
_TABLE = {
    group: {
        name: _Row(f"tensorstash.{module}:{kind}", "tensorstash", _INSTALL_HINTS.get(name, ""))
        for module, pairs in modules.items()
        for name, kind in (pair.split("=") for pair in pairs.split())
    }
    for group, modules in _BUILT_IN.items()
}
_LOCK = RLock()


def names(group: str) -> tuple[str, ...]:
    """Return the registered names of a group, sorted, without importing their targets.

    Args:
        group: ``"codecs"``, ``"stores"``, ``"policies"``, ``"selectors"``, ``"backends"`` or
            ``"recipes"``.

    Raises:
        ConfigError: there is no such group.

    >>> names("stores")[:2]
    ('disk', 'memory')
    """
    return tuple(sorted(_rows(group)))


def lookup(group: str, name: str) -> type:
    """Return the class behind a name, importing it on first use. Thread-safe.

    Args:
        group: one of the groups of :func:`names`.
        name: of the class in configurations.

    Raises:
        ConfigError: unknown group or name, a name that two packages claim, or a target that is not a class of that
            name.
        MissingDependencyError: the import failed; the message names the package to install.

    >>> lookup("selectors", "min_bytes").__name__
    'MinBytes'
    """
    rows = _rows(group)
    row = rows.get(name)
    if row is None:
        raise ConfigError(f"{group}: unknown name {name!r}; {did_you_mean(name, rows)}")
    if row.rival is not None:
        raise _conflict(group, name, row, row.rival)
    return row.kind or _load(group, name, row)


def register(group: str, name: str, target: type | str, *, install_hint: str = "") -> None:
    """Give a name to a class in this process; packages do it with an entry point instead.

    Registering the same target again does nothing. Thread-safe.

    Args:
        group: one of the groups of :func:`names`; the entry-point group is ``tensorstash.<group>``.
        name: of the class in configurations; equal to its ``name`` attribute.
        target: the class, or ``"module:Class"`` to import it on first use.
        install_hint: command that installs the missing package, such as ``"pip install mypackage"``.

    Raises:
        ConfigError: the name is taken, or differs from the class's own.

    >>> register("codecs", "zstd", "tensorstash.codecs.zstd:Zstd")  # the same again does nothing
    """
    rows = _rows(group)
    where = target if isinstance(target, str) else f"{target.__module__}:{target.__qualname__}"
    kind = None if isinstance(target, str) else _checked(group, name, target)
    row = _Row(where, "register()", install_hint, kind)
    taken = rows.setdefault(name, row)
    if taken.target != row.target or (kind and taken.kind not in (None, kind)):
        raise _conflict(group, name, taken, row)


def _rows(group: str) -> dict[str, _Row]:
    if group not in _TABLE:
        raise ConfigError(f"unknown registry group {group!r}; {did_you_mean(group, _TABLE)}")
    with _LOCK:
        _add_entry_points(group)
    return _TABLE[group]


@cache
def _add_entry_points(group: str) -> None:
    rows = _TABLE[group]
    for point in entry_points(group=f"tensorstash.{group}"):
        package = point.dist.name if point.dist is not None else "an unnamed package"
        row = _Row(point.value, package, f"check the installation of {package}")
        taken = rows.setdefault(point.name, row)
        if taken.target != row.target:
            rows[point.name] = replace(taken, rival=row)


def _load(group: str, name: str, row: _Row) -> type:
    module, _, attribute = row.target.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except ImportError as error:
        hint = f"; {row.install_hint}" if row.install_hint else ""
        raise MissingDependencyError(f"{group}: {name!r} ({row.target}) cannot be imported: {error}{hint}") from error
    except AttributeError as error:
        raise ConfigError(f"{group}: {name!r} of {row.origin} points at {row.target}, which does not exist") from error
    return _checked(group, name, found)


def _checked(group: str, name: str, found: object) -> type:
    if not isinstance(found, type):
        raise ConfigError(f"{group}: {name!r}: got {found!r}, expected a class")
    if (own := getattr(found, "name", None)) != name:
        raise ConfigError(f"{group}: {found.__qualname__} is registered as {name!r}, but its name is {own!r}")
    return found


def _conflict(group: str, name: str, taken: _Row, other: _Row) -> ConfigError:
    return ConfigError(
        f"{group}: the name {name!r} is claimed by {taken.target} of {taken.origin} and by {other.target} of "
        f"{other.origin}; rename or remove one of them"
    )
