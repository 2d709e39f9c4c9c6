"""Names in configurations, and the classes they stand for."""

from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from tensorstash.errors import ConfigError, MissingDependencyError


def did_you_mean(name: object, known: Iterable[str], listed: Iterable[str] | None = None) -> str:
    """Return the end of a message about an unknown name: the nearest known one, and all of them or those listed."""
    names, text = sorted(known), str(name).lower()
    nearest = get_close_matches(str(name), names, n=1) or [each for each in names if len(text) > 2 and text in each]
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    return f"{hint}Known: {', '.join(names if listed is None else sorted(listed)) or 'none'}"


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

_Claim = EntryPoint | type  # a class under a name, registered or still to be imported

_TABLE: dict[str, dict[str, tuple[_Claim, ...]]] = {
    group: {
        name: (EntryPoint(name, f"tensorstash.{module}:{kind}", group),)
        for module, pairs in modules.items()
        for name, kind in (pair.split("=") for pair in pairs.split())
    }
    for group, modules in _BUILT_IN.items()
}
"""By group and name, all that claim the name; two make it unusable."""


def names(group: str) -> tuple[str, ...]:
    """Return the registered names of a group, such as ``"codecs"``, sorted, without importing their targets."""
    return tuple(sorted(_rows(group)))


def lookup(group: str, name: str) -> type:
    """Return the class behind a name, importing it on first use. Thread-safe."""
    rows = _rows(group)
    if name not in rows:
        raise ConfigError(f"{group}: unknown name {name!r}; {did_you_mean(name, rows)}")
    if len(rows[name]) > 1:
        raise _conflict(group, name, rows[name])
    (claim,) = rows[name]
    return claim if isinstance(claim, type) else _loaded(group, name, claim)


def register(group: str, name: str, target: type) -> None:
    """Give a name to a class in this process; packages do it with an entry point of ``tensorstash.<group>`` instead.

    A class that is made anew, as by a cell of a notebook that runs again, takes the place of its namesake. Thread-safe.

    Args:
        group: ``"codecs"``, ``"stores"``, ``"policies"``, ``"selectors"``, ``"backends"`` or ``"recipes"``.
        name: of the class in configurations; equal to its ``name`` attribute.
        target: the class.

    Raises:
        ConfigError: the name is taken, or differs from the class's own.

    >>> from tensorstash.codecs import Zstd
    >>> register("codecs", "zstd", Zstd)
    """
    rows = _rows(group)
    taken = rows.get(name, ())
    if any(_target(claim) != _target(target) for claim in taken):
        raise _conflict(group, name, (*taken, target))
    rows[name] = (_checked(group, name, target),)


def _rows(group: str) -> dict[str, tuple[_Claim, ...]]:
    if group not in _TABLE:
        raise ConfigError(f"unknown registry group {group!r}; {did_you_mean(group, _TABLE)}")
    _add_entry_points(group)
    return _TABLE[group]


@cache  # a second thread may do it at the same time, with the same result
def _add_entry_points(group: str) -> None:
    rows = _TABLE[group]
    for point in entry_points(group=f"tensorstash.{group}"):
        taken = rows.get(point.name, ())
        if point.value not in map(_target, taken):
            rows[point.name] = (*taken, point)


def _loaded(group: str, name: str, point: EntryPoint) -> type:
    try:
        found = point.load()
    except ImportError as error:
        is_ours = group == "backends" and point.dist is None
        cure = f"pip install tensorstash[{name}]" if is_ours else f"check the installation of {_owner(point)}"
        why = f"{group}: {name!r} ({point.value}) cannot be imported: {error}; {cure}"
        raise MissingDependencyError(why) from error
    except AttributeError as error:
        why = f"{group}: {name!r} of {_owner(point)} points at {point.value}, which does not exist"
        raise ConfigError(why) from error
    return _checked(group, name, found)


def _checked(group: str, name: str, found: object) -> type:
    if not isinstance(found, type):
        raise ConfigError(f"{group}: {name!r}: got {found!r}, expected a class")
    if (own := getattr(found, "name", None)) != name:
        raise ConfigError(f"{group}: {found.__qualname__} is registered as {name!r}, but its name is {own!r}")
    return found


def _target(claim: _Claim) -> str:
    return f"{claim.__module__}:{claim.__qualname__}" if isinstance(claim, type) else claim.value


def _owner(claim: _Claim) -> str:
    if isinstance(claim, type):
        return "register()"
    return claim.dist.name if claim.dist is not None else "tensorstash"


def _conflict(group: str, name: str, claims: tuple[_Claim, ...]) -> ConfigError:
    owners = " and by ".join(f"{_target(claim)} of {_owner(claim)}" for claim in claims)
    return ConfigError(f"{group}: the name {name!r} is claimed by {owners}; rename or remove one of them")
