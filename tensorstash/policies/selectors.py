"""Selectors of saved tensors: frozen predicates over their specs, combined with ``&``, ``|`` and ``~``.

A value that a selector cannot take is a :class:`~tensorstash.errors.ConfigError` when it is built.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import ClassVar

from tensorstash.errors import ConfigError
from tensorstash.protocols import Codec, Selector
from tensorstash.registry import did_you_mean
from tensorstash.sizes import parse_bytes
from tensorstash.spec import DTYPES, TensorSpec

_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
"""Names that the compiler, sharding and checkpointing put between a module and its name, and nobody else."""

_OUTERMOST = ("module.", "base_model.model.")  # names that data parallelism and adapters put around a whole model

_SHOWN = 12


class Predicate(ABC):
    """A selector with operators; every selector here is one, and those of plug-ins may be.

    >>> MinBytes("1 MiB") & ~Dtypes("bool")
    All(of=(MinBytes(size=1048576), Not(selector=Dtypes(names=('bool',)))))
    """

    name: ClassVar[str]

    @abstractmethod
    def accepts(self, spec: TensorSpec, /) -> bool:
        """Whether the tensor is selected; pure."""

    def __and__(self, other: Selector) -> "All":
        return All((*_operands(All, self), *_operands(All, other)))

    def __or__(self, other: Selector) -> "Any":
        return Any((*_operands(Any, self), *_operands(Any, other)))

    def __invert__(self) -> "Not":
        return Not(self)


@dataclass(frozen=True)
class MinBytes(Predicate):
    """Tensors of at least this many bytes.

    Args:
        size: bytes, or text such as ``"1 MiB"``.
    """

    name: ClassVar[str] = "min_bytes"
    size: int | str

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", parse_bytes(self.size, path="min_bytes.size"))

    def accepts(self, spec: TensorSpec, /) -> bool:
        return spec.nbytes >= int(self.size)


@dataclass(frozen=True)
class Dtypes(Predicate):
    """Tensors of one of these element types.

    Args:
        names: one name of :data:`~tensorstash.spec.DTYPES` or several, such as ``("int64", "bool")``.
    """

    name: ClassVar[str] = "dtypes"
    names: str | tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", texts_of(self.names, path="dtypes.names"))
        for dtype in self.names:
            if dtype not in DTYPES:
                raise ConfigError(f"dtypes.names: unknown dtype {dtype!r}; {did_you_mean(dtype, DTYPES)}")

    def accepts(self, spec: TensorSpec, /) -> bool:
        return spec.dtype in self.names


@dataclass(frozen=True)
class _Named(Predicate):
    patterns: str | tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "patterns", texts_of(self.patterns, path=f"{self.name}.patterns"))

    def _matches(self, names: Iterable[str]) -> bool:
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.patterns)


@dataclass(frozen=True)
class Devices(_Named):
    """Tensors on a device whose name, or whose type (the name up to the colon), matches a pattern.

    Args:
        patterns: one shell-style pattern or several, such as ``"cuda"``, ``"gpu:0"`` or ``("cuda:[01]", "xpu*")``.

    >>> spec = TensorSpec((2,), (1,), 0, "float32", "cuda:0")
    >>> Devices("cuda").accepts(spec), Devices("cuda:1").accepts(spec)
    (True, False)
    """

    name: ClassVar[str] = "devices"

    def accepts(self, spec: TensorSpec, /) -> bool:
        return self._matches((spec.device, spec.device.partition(":")[0]))


@dataclass(frozen=True)
class ModuleNames(_Named):
    """Tensors saved inside a module whose dotted name, or the name of a module around it, matches a pattern.

    A tensor whose module is not known, or is the wrapped model itself, has the empty name and is never selected.

    Args:
        patterns: one shell-style pattern or several, such as ``"encoder"`` or ``("layers.[0-5]", "*.mlp")``; letter
            case counts, and ``*`` also matches dots.

    >>> spec = TensorSpec((2,), (1,), 0, "float32", "cpu", module="layers.1.mlp.up")
    >>> [ModuleNames(pattern).accepts(spec) for pattern in ("layers.1", "*.mlp", "layer", "up")]
    [True, True, False, False]
    """

    name: ClassVar[str] = "module_names"

    def accepts(self, spec: TensorSpec, /) -> bool:
        if not spec.module:
            return False
        parts = spec.module.split(".")
        return self._matches(".".join(parts[:depth]) for depth in range(1, len(parts) + 1))


@dataclass(frozen=True)
class _Combined(Predicate):
    of: tuple[Selector, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.of, tuple | list):
            raise ConfigError(f"{self.name}.of: got {self.of!r}, expected a tuple of selectors")
        for place, selector in enumerate(self.of):
            require_selector(selector, path=f"{self.name}.of[{place}]")
        object.__setattr__(self, "of", tuple(self.of))


@dataclass(frozen=True)
class All(_Combined):
    """Tensors that every one of these selectors accepts; without any, all tensors."""

    name: ClassVar[str] = "all"

    def accepts(self, spec: TensorSpec, /) -> bool:
        return all(selector.accepts(spec) for selector in self.of)


@dataclass(frozen=True)
class Any(_Combined):
    """Tensors that at least one of these selectors accepts; without any, no tensor."""

    name: ClassVar[str] = "any"

    def accepts(self, spec: TensorSpec, /) -> bool:
        return any(selector.accepts(spec) for selector in self.of)


@dataclass(frozen=True)
class Not(Predicate):
    """Tensors that the selector does not accept."""

    name: ClassVar[str] = "not"
    selector: Selector

    def __post_init__(self) -> None:
        require_selector(self.selector, path="not.selector")

    def accepts(self, spec: TensorSpec, /) -> bool:
        return not self.selector.accepts(spec)


def require_selector(value: object, *, path: str) -> None:
    """Raise ConfigError if a value is no selector, with its path, such as ``"rule.when"``."""
    if isinstance(value, type):
        raise ConfigError(f"{path}: got the class {value.__name__}, expected an instance such as MinBytes('1 MiB')")
    # A codec also has a name and tells whether it accepts a spec.
    if not isinstance(value, Selector) or isinstance(value, Codec):
        raise ConfigError(f"{path}: got {value!r}, expected a selector such as MinBytes('1 MiB')")


def _operands(combined: type[All] | type[Any], selector: Selector) -> tuple[Selector, ...]:
    return selector.of if isinstance(selector, combined) else (selector,)


def texts_of(values: object, *, path: str) -> tuple[str, ...]:
    """Return one text or several as a tuple; ConfigError with their path if they are neither, or one is empty."""
    texts = (values,) if isinstance(values, str) else values
    if not isinstance(texts, tuple | list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise ConfigError(f"{path}: got {values!r}, expected a text or a tuple of texts, none of them empty")
    return tuple(texts)


def named_for(patterns: Iterable[str], names: Iterable[str], *, path: str = "module_names.patterns") -> dict[str, str]:
    """Return the modules of a model that shell-style patterns mean, each with the name by which the patterns know it.

    Patterns see through the names that trainers put around models and modules, unless they name those too.

    Raises:
        ConfigError: a pattern means none of them; the message has the nearest names.
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
