"""Modules of a model that policies select by name."""

from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase

from tensorstash.errors import ConfigError

_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
"""Names that the compiler, sharding and checkpointing put between a module and its name, and nobody else."""

_OUTERMOST = ("module.", "base_model.model.")
"""Names that data parallelism and adapters put around a whole model."""

_SHOWN = 12


def named_for(patterns: Iterable[str], names: Iterable[str], *, path: str = "module_names.patterns") -> dict[str, str]:
    """Return the modules of a model that shell-style patterns mean, each with the name by which the patterns know it.

    Patterns see through the names that trainers put around models and modules, unless they name those too.

    Raises:
        ConfigError: a pattern means none of them; the message has the nearest names.

    >>> named_for(["layers.?"], ["", "module", "module._orig_mod", "module._orig_mod.layers.0"])
    {'module._orig_mod.layers.0': 'layers.0'}
    """
    wanted = list(patterns)
    as_they_are = {name: name for name in names if name}
    through = {name: seen for name in as_they_are if (seen := _seen_through(name))}
    if all(_means_one(pattern, as_they_are.values()) for pattern in wanted):
        through = as_they_are
    for pattern in wanted:
        if not _means_one(pattern, through.values()):
            raise ConfigError(
                f"{path}: {pattern!r} matches no module of the model (shell-style, the whole name); "
                f"{_nearest(pattern, list(through.values()))}"
            )
    return {name: seen for name, seen in through.items() if any(fnmatchcase(seen, pattern) for pattern in wanted)}


def _means_one(pattern: str, names: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _seen_through(name: str) -> str:
    name = ".".join(part for part in name.split(".") if part not in _WRAPPERS) + "."
    for prefix in _OUTERMOST:
        name = name.removeprefix(prefix)
    return name.removesuffix(".")


def _nearest(pattern: str, names: list[str]) -> str:
    if _means_one(f"*.{pattern}", names):
        return f"did you mean {f'*.{pattern}'!r}?"
    near = get_close_matches(pattern, names, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    shallow = sorted(names, key=lambda name: name.count("."))[:_SHOWN]
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{hint}There are: {', '.join(shallow) or 'none'}{rest}"
